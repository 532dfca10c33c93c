"""The folders of knowledge: what was read of each and left out, updates with their progress, and a test question that
answers with scores. Owns the list and its keys; what is changed is `tui.knowledge.updater`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.activity import bar_of
from app.chat.tools_editor import KNOWLEDGE_MODES, ToolsEditor
from app.common.terminal import counted, printable, printable_line, quoted_name
from app.knowledge.search import Found, Hit
from app.knowledge.store import FolderSummary
from quantizer.system.errors import UserError
from tui.chat.tools.screen import FolderSuggester
from tui.chat.transcript.citation import CitationScreen
from tui.design.search_box import SearchBox
from tui.design.words import cut, relative_time
from tui.knowledge.updater import KnowledgeUpdater
from tui.widgets.dialogs import ChoiceDialog, InputDialog, TableDialog

_DRAWN_EVERY_S = 0.2
_N_HITS = 10
_NAME_CELLS = 40
_EXCERPT_CHARACTERS = 200
_ADD_HINT = (
    "PDF, Word, HTML, Markdown, text, notebooks and tables in it and below are read; hidden files and files that may "
    "hold secrets are left out. Right completes a name."
)
_NONE = """No folder yet.

A adds one: its documents are read, and answers cite file and page. Nothing leaves this machine.
/knowledge on lets a chat search them; F1 has the page about knowledge."""
_MODES = {
    "off": "This chat does not search them",
    "on": "This chat searches them when it is needed",
    "auto": "This chat searches them before each question",
}
_QUESTION = "ask a test question"


class LeftOutScreen(TableDialog):
    """What was left out of a folder, and why."""

    CSS_PATH = "knowledge.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,l,enter", "dismiss(None)", "Close", id="left-out-close", tooltip="Go back")
    ]


class KnowledgeScreen(ModalScreen[None]):
    """Shows the folders that `updater` updates, and changes them; `editor` has the chat."""

    CSS_PATH = "knowledge.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close", id="knowledge-close", tooltip="Stop an update; else go back to the chat"),
        Binding("a", "add", "Add a folder", id="knowledge-add", tooltip="Add a folder of documents"),
        Binding("u", "update", "Update", id="knowledge-update", tooltip="Read what changed in all folders"),
        Binding("delete", "remove", "Forget", id="knowledge-remove", tooltip="Forget the folder; its documents stay"),
        Binding("l", "left_out", "Left out", id="knowledge-left-out", tooltip="List what was left out, and why"),
        Binding("m", "switch", "Mode", id="knowledge-mode", tooltip="Let the chat search the folders: off, on, auto"),
        Binding("slash", "ask", "Test question", id="knowledge-ask", tooltip="Ask a test question"),
    ]

    def __init__(self, updater: KnowledgeUpdater, editor: ToolsEditor, data_dir: Path) -> None:
        super().__init__()
        self._updater = updater
        self._editor = editor
        self._data_dir = data_dir
        self._folders: Sequence[FolderSummary] = ()
        self._found: Found | None = None
        self._fault = ""
        self._drawn: tuple[str, str] = ("", "")
        self._step = (False, True)  # of the update that was drawn last

    def compose(self) -> ComposeResult:
        with Vertical(id="knowledge") as panel:
            panel.border_title = "Knowledge"
            panel.border_subtitle = "A add · U update · Del forget · L left out · M mode · / ask · Esc"
            yield Static("…", markup=False, id="mode")
            yield SearchBox(_QUESTION)
            yield OptionList(markup=False, compact=True)
            yield Static("", markup=False, id="about")
            yield Static("", markup=False, id="state")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._load()
        self.set_interval(_DRAWN_EVERY_S, self._draw_state)

    # Keys

    def action_ask(self) -> None:
        self.query_one(SearchBox).focus()

    async def action_leave(self) -> None:
        """Go one step back: from the answers of a test question, an update, the screen."""
        if self._found is not None:
            self._found = None
            self.query_one(SearchBox).value = ""
            self._show()
        elif self._updater.is_running:
            await self._updater.stop()
        else:
            self.dismiss()

    def action_add(self) -> None:
        dialog = InputDialog("Folder of documents", self.add, explanation=_ADD_HINT, suggester=FolderSuggester())
        self.app.push_screen(dialog)

    async def add(self, path: str) -> None:
        """Add the folder at a typed path. Raises UserError."""
        await self._updater.add(typed_path(path))
        self._load()

    def action_update(self) -> None:
        self._do(self._updater.update())

    def action_remove(self) -> None:
        if (folder := self._chosen) is None:
            return
        n_passages = counted(folder.n_passages, "passage")
        question = f"What was read of {printable_line(folder.path)} ({n_passages}) is forgotten. The documents stay."
        choices = {"forget": "Forget this folder", "keep": "Keep it"}

        def answered(choice: str | None) -> None:
            if choice == "forget":
                self._do(self._updater.remove(Path(folder.path)))

        self.app.push_screen(ChoiceDialog("Forget the folder", question, choices), answered)

    @work(exclusive=True, group="left-out")
    async def action_left_out(self) -> None:
        if (folder := self._chosen) is not None:
            rows = await self._updater.left_out(folder.path)
            shown = [(printable_line(path), printable_line(reason)) for path, reason in rows]
            self.app.push_screen(LeftOutScreen("Left out", shown or [("Nothing", "was left out")]))

    def action_switch(self) -> None:
        at = KNOWLEDGE_MODES.index(self._editor.knowledge_mode)
        self._do(self._editor.search_folders(KNOWLEDGE_MODES[(at + 1) % len(KNOWLEDGE_MODES)]))

    @on(SearchBox.Left)
    def _left_question(self, event: SearchBox.Left) -> None:
        event.stop()
        question = self.query_one(SearchBox).value
        if event.is_entered and question.strip():
            self._search(question)
        elif not question and self._found is not None:
            self._found = None
            self._show()
        self.query_one(OptionList).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._found is not None and event.option_index < len(self._found.hits):
            self.app.push_screen(CitationScreen(self._data_dir, self._found.hits[event.option_index].source))

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._show_about()

    # What is shown

    @work(exclusive=True, group="knowledge")
    async def _load(self) -> None:
        try:
            self._folders, self._fault = await self._updater.folders(), ""
        except UserError as error:
            self._folders, self._fault = (), str(error)
        self._show()

    @work(exclusive=True, group="search")
    async def _search(self, question: str) -> None:
        self.query_one("#about", Static).update("Searching …")
        try:
            self._found, self._fault = await self._updater.search(question, _N_HITS), ""
        except UserError as error:
            self._found, self._fault = None, str(error)
        self._show()

    @work(group="change")
    async def _do(self, change: Awaitable[object]) -> None:
        self._fault = ""
        try:
            await change
        except UserError as error:
            self._fault = str(error)
        self._load()

    def _draw_state(self) -> None:
        updater = self._updater
        step = (bool(updater.words), updater.share is None)  # begun, read, ended: then the counts are others
        if step != self._step:
            self._step = step
            self._load()
        bar = "" if updater.share is None else f" {bar_of(updater.share)}"
        words = f"{updater.words}{bar} · Esc stops" if updater.is_running else updater.words or updater.note
        if (drawn := (words, self._fault)) != self._drawn:
            self._drawn = drawn
            state = self.query_one("#state", Static)
            state.update(printable("\n".join(filter(None, drawn))))
            state.set_class(bool(self._fault), "-failed")

    def _show(self) -> None:
        self.query_one("#mode", Static).update(f"{_MODES[self._editor.knowledge_mode]} · M changes that")
        listed = self.query_one(OptionList)
        at = listed.highlighted or 0
        listed.clear_options()
        rows = list(_hit_rows(self._found)) if self._found is not None else list(_folder_rows(self._folders))
        listed.add_options(rows)
        listed.highlighted = min(at, len(rows) - 1) if rows else None
        self._show_about()
        self._draw_state()

    def _show_about(self) -> None:
        about, at = self.query_one("#about", Static), self.query_one(OptionList).highlighted
        if self._found is not None:
            hits = self._found.hits
            text = _excerpt(hits[at]) if at is not None and at < len(hits) else "No passage was found."
            text = "\n".join([text, *self._found.notices, "Enter opens the passage, Esc shows the folders."])
        else:
            text = _NONE if (folder := self._chosen) is None else _about(folder)
        about.update(printable(text))

    @property
    def _chosen(self) -> FolderSummary | None:
        at = self.query_one(OptionList).highlighted
        is_folder = self._found is None and at is not None and at < len(self._folders)
        return self._folders[at] if is_folder and at is not None else None


def typed_path(text: str) -> Path:
    """Return the absolute path that was typed, perhaps in quotes and with ~ for the home folder."""
    return Path(text.strip().strip("'\"")).expanduser().absolute()


def _folder_rows(folders: Sequence[FolderSummary]) -> Iterator[Option]:
    for folder in folders:
        counts = f"{counted(folder.n_files, 'file')} · {counted(folder.n_passages, 'passage')}"
        out = f" · {folder.n_left_out:,} left out" if folder.n_left_out else ""
        name = cut(quoted_name(Path(folder.path).name), _NAME_CELLS)
        path = quoted_name(folder.path)
        yield Option(Content.assemble((name, "bold"), f"  {counts}{out}", (f"  {path}", "$text-muted")))


def _about(folder: FolderSummary) -> str:
    moment = datetime.fromtimestamp(folder.updated_ms / 1000, UTC)
    when = (
        f"read {relative_time(moment.astimezone(), datetime.now(UTC).astimezone())}"
        if folder.updated_ms
        else "not wholly read yet: U goes on"
    )
    n_waiting = folder.n_passages - folder.n_embedded
    if not folder.n_embedded:
        meaning = "found by words alone: no embedding model has read it (F1, knowledge)"
    else:
        meaning = "found by words and meaning" + (f", {n_waiting:,} passages by words alone" if n_waiting else "")
    return f"{when} · {meaning}" + (f" · L lists the {folder.n_left_out:,} left out" if folder.n_left_out else "")


def _hit_rows(found: Found) -> Iterator[Option]:
    for number, hit in enumerate(found.hits, start=1):
        ranks = [f"{name} {rank}" for name, rank in (("words", hit.word_rank), ("meaning", hit.vector_rank)) if rank]
        scores = f"{hit.score:8.4f}  {' · '.join(ranks):<24}"
        place = f"{printable_line(hit.source.label)}{' (changed since)' if hit.has_changed else ''}"
        yield Option(Content.assemble((f"{number:2} ", "$text-accent"), (scores, "$text-muted"), place))


def _excerpt(hit: Hit) -> str:
    text = " ".join(hit.passage.passage.text.split())
    return f"{text[:_EXCERPT_CHARACTERS]}{'…' if len(text) > _EXCERPT_CHARACTERS else ''}\n{hit.place}"
