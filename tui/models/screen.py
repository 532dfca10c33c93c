"""The models screen: its search field and list, the details of the selected row, and the commands for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.cells import cell_len
from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from app.common.terminal import printable_line
from app.protocol.job import Job
from app.settings.parsing import parse_duration
from app.settings.settings import Settings
from tui.commands import HOME, CommandTable, list_command
from tui.context import AppContext, BaseApp
from tui.design.header import ScreenHeader
from tui.design.key_bar import KeyHint
from tui.design.search_box import SearchBox
from tui.models.dialogs import ModelInfoScreen, QuantizeScreen
from tui.models.lists import ModelLists
from tui.models.rows import (
    ModelRow,
    RowKind,
    Section,
    format_fit,
    format_rate,
    format_removal,
    format_size,
    updates_words,
)
from tui.models.table import columns, headings, row_line
from tui.models.typed import begins_path, completed, typed_path
from tui.widgets.dialogs import ChoiceDialog, InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.client.service_client import LibraryClient


_ACTIONS = {
    "local": "",
    "external": "i links it into the library.",
    "engine": "",
    "remote": "Downloads in the background.",
    "file": "Enter imports it: a link, no second copy.",
    "folder": "",
}
_ENTER_WORDS: dict[RowKind, str] = {
    "local": "chat",
    "external": "chat",
    "engine": "chat",
    "remote": "download",
    "file": "import",
    "folder": "open",
}
_HINTED = ("search", "plan-model", "quantize", "verify-model", "import", "check-updates", "remove", "card", "load",
           "make-default", "rename-model", "export-model")  # fmt: skip
_HINT_WORDS = {"check-updates": "updates"}
_MARGIN_CELLS = 1  # air
_SIGN_CELLS = 2  # behind the name of a model that was verified, or has a newer revision

_READ_S = 8.0  # of a long sentence
_LOOK_S = 1.0  # between two looks at the models folder
_FOR_GOOD = "-1"
_KEEP, _REMOVE = "keep", "remove"
_LATER, _ALL = "later", "all"
_REMOVING = {_KEEP: "Keep it", _REMOVE: "Remove it"}  # the harmless choice first


MODEL_COMMANDS = CommandTable(
    list_command("choose", "Chat/download", "enter",
                 "Chat with the model; a remote one is downloaded in the background", "choose"),
    list_command("search", "Search", "slash,ctrl+f", "Search local models and the hub", "focus_search"),
    list_command("plan-model", "Plan", "p", "See where the model's layers go, and how fast it is", "plan"),
    list_command("quantize", "Quantize", "q", "Quantize the model to a type or a size; runs as a job", "quantize",
                 takes_text=True),
    list_command("import", "Import", "i", "Link a file, or another program's model, into the library", "import_model"),
    list_command("remove", "Delete", "delete", "Delete the model after confirmation", "remove_model"),
    list_command("card", "Details", "d,c", "Show all that is known of the model", "show_card"),
    list_command("load", "Load", "u", "Load the model, or unload it to free its memory", "load_or_unload"),
    list_command("cancel", "Stop", "x", "Stop the download, whose partial data is kept, or the verification", "cancel"),
    list_command("verify-model", "Verify", "v", "Check the model's structure and its SHA-256; runs as a job", "verify",
                 is_shown=False),
    list_command("make-default", "Default model", "m",
                 "Make it the default model, which answers at the start and where a client names none", "make_default",
                 is_shown=False),
    list_command("rename-model", "Rename", "r", "Give the model another name", "rename_model", is_shown=False,
                 takes_text=True),
    list_command("export-model", "Export", "e", "Copy the model's files to a folder", "export_model", is_shown=False,
                 takes_text=True),
    list_command("check-updates", "Check for updates", "o",
                 "Ask the hub which models have a newer revision, and offer to download it", "check_updates",
                 is_shown=False),
    list_command("keep", "Keep", "k", "Keep the model loaded, or unload it after idle time (setting keep_alive)",
                 "toggle_keep_alive", is_shown=False),
    list_command("look-again", "Refresh", "ctrl+r", "Rescan the disk and free memory", "rescan", is_shown=False),
)  # fmt: skip
# The kinds of rows that a command is for; one that is not named is for all.
_APPLIES: dict[str, tuple[RowKind, ...]] = {
    "plan-model": ("local", "external"),
    "quantize": ("local", "external"),
    "remove": ("local",),
    "card": ("local", "external"),
    "load": ("local", "external"),
    "make-default": ("local", "external"),
    "rename-model": ("local",),
    "export-model": ("local",),
    "verify-model": ("local", "external"),
}
_OF_FILES = ("remove", "rename-model", "export-model")  # not for the model that is part of the program
_RUNNING = ("plan-model", "quantize", "load", "make-default")  # for which a file must be whole


class SearchField(SearchBox):
    """Tab completes a path. A path that is typed or pasted right behind a `prefill` replaces it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", show=False, id="complete-path", tooltip="Complete the path"),
    ]

    def __init__(self) -> None:
        super().__init__("filter, search the hub, or type a path")
        self._prefill = ""

    def prefill(self, text: str) -> None:
        """Show the beginning of a path."""
        self.value = self._prefill = text
        self.cursor_position = len(text)

    def insert_text_at_cursor(self, text: str) -> None:
        is_untouched = bool(self._prefill) and self.value == self._prefill
        if is_untouched and self.cursor_position == len(self.value) and begins_path(text):
            self.value = ""
            self.cursor_position = 0
        super().insert_text_at_cursor(text)

    def action_complete(self) -> None:
        path = typed_path(self.value)
        longer = completed(path) if path else path
        if longer == path:
            self.post_message(self.Left())
        else:
            self.value = longer
            self.cursor_position = len(longer)


def detail_lines(row: ModelRow) -> tuple[str, str]:
    """Return two printable lines: the facts about a row, and its actions."""
    context = f"context {row.n_ctx:,}" if row.n_ctx else ""
    state = {"ready": "loaded", "loading": "loading", "failed": "failed to load"}.get(row.state, "")
    if state == "loaded" and not row.is_staying:
        state = "loaded, unloads when idle"
    name = row.reference or (row.model if row.kind in ("file", "folder") else row.name)
    type_ = row.type if row.type not in name else ""
    figures = (format_size(row.n_bytes), type_, format_fit(row.fit), format_rate(row.fit))
    facts = (name, *figures, context, row.takes, state)
    action = "x stops it." if row.job_id else "" if row.damaged or row.is_arriving else _ACTIONS[row.kind]
    notes = (row.damaged, row.progress, action, row.newer, row.verified, row.note)
    return printable_line(" · ".join(filter(None, facts))), printable_line(" ".join(filter(None, notes)))


class ModelList(OptionList):
    """The sections; the highlight stays on its row while they change."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("up,down", "", "Rows", id="rows", tooltip="Select a model"),
        Binding("home,end,pageup,pagedown", "", "Pages", id="row-pages", tooltip="Move by a page"),
    )

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._sections: tuple[Section, ...] = ()
        self._shape: tuple[str | None, ...] = ()
        self._first: int | None = None  # the initial highlight
        self._awaited = ""  # the name of a local model to highlight when it is listed

    @property
    def row_id(self) -> str:
        option = self.highlighted_option
        return (option.id or "") if option is not None else ""

    @property
    def row(self) -> ModelRow | None:
        rows = (row for section in self._sections for row in section.rows)
        return next((row for row in rows if row.id == self.row_id), None)

    def await_model(self, name: str) -> None:
        """Highlight the local model `name` as soon as it is listed."""
        self._awaited = name

    def show(self, sections: Sequence[Section]) -> None:
        """Show `sections`; if the rows are the same, redraw only changed text."""
        self._sections = tuple(sections)
        width = max(20, self.size.width - _MARGIN_CELLS)
        rows = [row for section in sections for row in section.rows if not row.damaged]
        names = [cell_len(printable_line(row.name)) + (_SIGN_CELLS if row.verified or row.newer else 0) for row in rows]
        names += [cell_len(printable_line(section.title)) - 2 for section in sections[:1]]
        at, options = columns(width, max(names, default=0)), list[Option]()
        for number, section in enumerate(sections):
            title = printable_line(section.title)
            heading = Content.styled(f"\n{title}", "bold $text-accent") if number else headings(title, at)
            options.append(Option(heading, id=f"heading-{number}", disabled=True))
            options += (Option(row_line(row, at), id=row.id) for row in section.rows)
            if section.note:
                # A list cuts lines that are too long, and the end of a note is what to do.
                lines = wrap(printable_line(section.note), width, initial_indent="  ", subsequent_indent="  ")
                note = Content.styled("\n".join(lines), "$text-muted")
                options.append(Option(note, id=f"note-{number}", disabled=True))
        shape = tuple(option.id for option in options)
        if shape == self._shape:
            for index, option in enumerate(options):
                if self.get_option_at_index(index).prompt != option.prompt:
                    self.replace_option_prompt_at_index(index, option.prompt)
            return
        chosen, has_moved, self._shape = self.row_id, self.highlighted != self._first, shape
        self.set_options(options)
        is_kept = has_moved and chosen in shape
        local = (row for section in sections for row in section.rows if row.kind == "local")
        if awaited := next((row for row in local if row.name == self._awaited), None):
            self._awaited, chosen, is_kept = "", awaited.id, True
        self._first = next((index for index, option in enumerate(options) if not option.disabled), None)
        self.highlighted = shape.index(chosen) if is_kept else self._first

    def on_reformat_size(self) -> None:
        self.show(self._sections)


class ModelsScreen(FeatureScreen):
    """The lists, a search field, and details of the selected row."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "models.tcss"]
    FEATURE = "models"
    TABLE = MODEL_COMMANDS
    KEYS = ModelList.KEYS
    BINDINGS = MODEL_COMMANDS.bindings()

    class Changed(Message):
        """The lists changed."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._connection = app_context.connection
        self._downloads = app_context.downloads
        self._was_left = False
        self._lists = ModelLists(
            app_context.connection,
            app_context.jobs,
            lambda: self.post_message(self.Changed()),
            read_uses=app_context.repository.recent_models,
        )

    def body(self) -> Iterable[Widget]:
        with Horizontal(id="model-filter"):
            yield SearchField()
            yield Static(id="model-counts", markup=False)
        yield ModelList()
        yield Static(id="model-detail", markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.rows)  # at once: a command that opens the field may follow
        self._show()
        self._begin(self._lists.recommend, "recommend")
        self.app_context.jobs.on_end(self._job_ended)
        self._watch = self.set_interval(_LOOK_S, self._look)

    def show_facts(self, header: ScreenHeader) -> None:
        """Show the memory and the free disk, which decide on a model; of another machine they are not known here."""
        if self.app_context.settings.connect:
            super().show_facts(header)
        else:
            header.show_facts(self._lists.machine_facts(self.app_context.settings.models_dir))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Dim the keys that do nothing with the selected row."""
        command = str(parameters[0]) if action == "command" and parameters else ""
        if self.is_mounted and not self.applies(command):
            return None
        return super().check_action(action, parameters)

    def key_hints(self) -> Iterator[KeyHint]:
        """Yield the keys for the selected row, those that do nothing with it dimmed; in the field its own."""
        if isinstance(self.focused, Input):
            yield KeyHint("enter", "to the list")
            if self._lists.path:
                yield KeyHint("tab", "complete")
            yield KeyHint("esc", "clear")
        else:
            row, custom = self.row, self.app_context.settings_controller.keys
            if row is not None:
                word = "already downloading" if row.is_pulling else _ENTER_WORDS[row.kind]
                yield KeyHint("enter", word, "command('choose')", self, not row.damaged and not row.is_pulling)
            for name in ("cancel", *_HINTED) if row is not None and row.job_id else _HINTED:
                if command := self.TABLE.find(name):
                    key = command.key_name(custom)
                    key = key.lower() if len(key) > 1 or command.keys.islower() else key
                    word = _HINT_WORDS.get(name, command.title.lower())
                    yield KeyHint(key, word, f"command('{name}')", self, self.applies(name))
        yield KeyHint("f1", "help", "command('help')", self)

    def applies(self, command_id: str) -> bool:
        row = self.row
        if command_id == "cancel":
            return row is not None and bool(row.job_id)
        if command_id == "keep":
            return row is not None and row.is_loaded
        if command_id not in _APPLIES:
            return True
        if row is None or row.kind not in _APPLIES[command_id] or (row.is_built_in and command_id in _OF_FILES):
            return False
        return not (row.damaged or row.is_arriving) or command_id not in _RUNNING

    def on_screen_resume(self) -> None:
        """Refresh: files may have changed in the meantime. A path that was left in the field would hide all models."""
        if self._was_left and self._lists.path:
            self._type("")
            self.rows.focus()
        self._was_left = False
        self._begin(self._lists.refresh, "refresh")
        self._watch.resume()

    def on_screen_suspend(self) -> None:
        self._watch.pause()
        self._was_left = self.app.current_mode != self.FEATURE  # else a dialog is open

    async def _look(self) -> None:
        is_refreshing = any(worker.group == "refresh" and not worker.is_finished for worker in self.workers)
        if not is_refreshing and await self._lists.has_changed():
            self._begin(self._lists.refresh, "refresh")

    @property
    def rows(self) -> ModelList:
        return self.query_one(ModelList)

    @property
    def row(self) -> ModelRow | None:
        return self.rows.row

    # Events

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._lists.narrow(event.value)
        self._begin(self._lists.search, "search")

    @on(SearchField.Left)
    async def _left_field(self, event: SearchField.Left) -> None:
        self.rows.focus()
        row = self.row
        if event.is_entered and row is not None and row.kind == "file":
            await self.run_command("choose")

    @on(OptionList.OptionSelected)
    async def _selected(self) -> None:
        await self.run_command("choose")

    @on(OptionList.OptionHighlighted)
    def _show_detail(self) -> None:
        row = self.row
        text = "\n".join(detail_lines(row)) if row is not None else ""
        self.query_one("#model-detail", Static).update(text, layout=False)
        self.refresh_bindings()

    @on(Changed)
    def _show(self) -> None:
        self.rows.show(self._lists.sections())
        self.query_one("#model-counts", Static).update(self._lists.counts())
        self._show_detail()

    # Commands

    def focus_search(self) -> None:
        self.set_focus(self.query_one(SearchField))  # at once: the next key may be queued already

    def rescan(self) -> None:
        self._begin(partial(self._lists.refresh, is_fresh=True), "refresh")

    async def choose(self) -> None:
        row = self.row
        if row is None:
            return
        if row.damaged:
            self.inform(f"{row.name} cannot run: {row.damaged}")
        elif row.is_arriving:
            self.inform(f"{row.name} is still being copied.")
        elif row.kind == "remote":
            if row.job_id:
                self.inform("Already downloading: x stops it.")
            else:
                await self._downloads.start(row.reference, row.quantize)
                self.inform(f"Downloading {row.name.strip()} in the background.")
        elif row.kind == "file":
            await self._import(row)
        elif row.kind == "folder":
            self._type(f"{row.model}{os.sep}")
        else:
            await self._connection.use_model(row.model)
            await self.run_command(f"go-{HOME}")

    async def plan(self) -> None:
        """Show the plan of the row's model."""
        if row := self._local_row():
            await cast("BaseApp", self.app).plan_model(row.model)

    async def make_default(self) -> None:
        if row := self._local_row():
            name = row.name if row.kind == "local" else row.model
            self.inform(await self.app_context.settings_controller.change("model", name))
            self._show()

    def rename_model(self) -> None:
        row = self._local_row()
        if row is None or self._must_unload(row, "rename"):
            return

        async def rename(name: str) -> None:
            new, formers = await self._lists.rename(row.model, name.strip())
            if self.app_context.settings_controller.text("model") in formers:
                await self.app_context.settings_controller.change("model", new)
            await self.app_context.session.rename_model(formers, new)
            self.inform(f"{row.name} is {new} now.")
            self.rows.await_model(new)  # else the next key is for the first row
            self.rescan()

        self.app.push_screen(InputDialog("Rename the model", rename, value=row.name))

    def export_model(self) -> None:
        row = self._local_row()
        if row is None:
            return

        async def export(folder: str) -> None:
            copied = await self._lists.export(row.model, folder.strip())
            self.inform(f"Copied to {copied[0]}" + (f" and {len(copied) - 1} more files." if copied[1:] else "."))

        explanation = f"A folder, for a copy of {format_size(row.n_bytes)}."
        self.app.push_screen(InputDialog("Export the model", export, value=f"~{os.sep}", explanation=explanation))

    async def verify(self) -> None:
        """Read all files of the row's model in the background, unless that is under way."""
        if row := self._local_row():
            if row.job_id:
                self.inform(f"{row.name} is being verified: x stops it.")
                return
            await (await self.service()).start_job("verify", {"model": row.model})
            self.inform(f"Verifying {row.name}, {format_size(row.n_bytes)}: F8 shows the jobs.")

    @work(group="updates", exclusive=True)
    async def check_updates(self) -> None:
        """Ask the hub for newer revisions, and download those that are chosen: the old file stays until then."""
        with self.inform_on_error():
            with self.inform_during("Asking the hub for newer revisions …"):
                found = await self._lists.check_updates()
            newer = {update.reference: update for update in found if update.state == "newer"}
            if not newer:
                self.inform(updates_words(found), _READ_S)
                return
            choices = {_LATER: "Not now"}
            choices |= {key: f"{each.id}, {format_size(each.n_bytes)}" for key, each in newer.items()}
            if len(newer) > 1:
                choices[_ALL] = f"All {len(newer)}, {format_size(sum(each.n_bytes for each in newer.values()))}"
            others = f" {updates_words(found)}"
            explanation = (
                f"The hub has newer revisions of these models; the old files stay until they are here.{others}"
            )
            chosen = await self.app.push_screen_wait(ChoiceDialog("Newer revisions", explanation, choices))
            for reference in newer if chosen == _ALL else filter(newer.get, [chosen or _LATER]):
                await self._downloads.start(reference)
                self.inform(f"Downloading {newer[reference].id} in the background: F8 shows the jobs.")

    async def show_card(self) -> None:
        if row := self._local_row():
            self.app.push_screen(ModelInfoScreen(row.name, await (await self._library()).show(row.model)))

    async def quantize(self) -> None:
        row = self._local_row()
        if row is None:
            return
        library = await self._library()

        async def start(chosen: dict[str, object] | None) -> None:
            if chosen is not None:
                with self.inform_on_error():
                    source = "guide" if row.name == "guide" else row.model
                    await (await self.service()).start_job("quantize", {"source": source, **chosen})
                    self.inform(f"Quantizing {row.name} has started: F8 shows the jobs.")

        dialog = QuantizeScreen(row.name, row.n_bytes, row.type, partial(library.types, row.model))
        self.app.push_screen(dialog, start)

    async def import_model(self) -> None:
        """Link the row's file into the library; on other rows begin a path, for which files are offered."""
        row = self.row
        if row is not None and row.kind in ("external", "file"):
            await self._import(row)
            return
        self.focus_search()  # first: what is typed next is for the field
        await self._library()  # an engine of another program has none: say so
        self.query_one(SearchField).prefill(f"~{os.sep}")

    async def _import(self, row: ModelRow) -> None:
        if self._lists.holds(row.model):
            self.inform(f"{row.name} is in the models folder already.")
            return
        name = await (await self._library()).import_model(row.model)
        self._type("")
        self.inform(f"{name} is imported; it shares disk space with the original.")
        self.rows.await_model(name)
        self.rescan()

    def _type(self, text: str) -> None:
        field = self.query_one(SearchField)
        field.value = text
        field.cursor_position = len(text)

    @work
    async def remove_model(self) -> None:
        row = self._local_row()
        if row is None or self._must_unload(row, "delete"):
            return
        with self.inform_on_error():
            removal = await (await self._library()).removal(row.model)
            dialog = ChoiceDialog("Remove a model", format_removal(removal), _REMOVING)
            if await self.app.push_screen_wait(dialog) == _REMOVE:
                gone = await (await self._library()).remove(row.model)
                self.inform(f"{gone.id} is removed.")
                self.rescan()

    async def load_or_unload(self) -> None:
        row = self._local_row()
        if row is None:
            return
        if row.is_loaded:
            await (await self._library()).unload(row.loaded_as)
            self.inform(f"{row.name} is unloaded; the next message loads it again.")
        else:
            await (await self.service()).load(row.model)
            self.inform(f"{row.name} is loading.")
        self.rescan()

    async def toggle_keep_alive(self) -> None:
        row = self.row
        if row is None or not row.is_loaded:
            self.inform("Only a loaded model can be kept.")
            return
        idle = self.app_context.settings_controller.settings.keep_alive
        if parse_duration(idle) is None:  # forever, which needs no key: then the default
            idle = Settings().keep_alive
        await (await self._library()).keep_alive(row.loaded_as, idle if row.is_staying else _FOR_GOOD)
        self.inform(f"{row.name} unloads when idle for {idle}." if row.is_staying else f"{row.name} stays loaded.")
        self.rescan()

    async def cancel(self) -> None:
        row = self.row
        if row is None or not row.job_id:
            self.inform("Nothing is under way for this row.")
            return
        await (await self.service()).cancel_job(row.job_id)
        self.inform("Stopped. Partial data is kept: Enter resumes." if row.is_pulling else "Stopped.")

    # Helpers

    def _must_unload(self, row: ModelRow, verb: str) -> bool:
        """Say that a loaded model cannot be changed, before a name is typed or a removal confirmed."""
        if row.is_loaded:
            self.refuse(f"{row.name} is loaded. Unload it with u, then {verb} it.")
        return row.is_loaded

    def _local_row(self) -> ModelRow | None:
        row = self.row
        if row is None or row.kind in ("remote", "file", "folder"):
            is_remote = row is None or row.kind == "remote"
            missing = "downloaded: Enter downloads" if is_remote else "imported: i imports"
            cast("BaseApp", self.app).drop_typed_ahead()
            self.inform(f"This model is not {missing} it.")
            return None
        return row

    async def _library(self) -> LibraryClient:
        return (await self.service()).library

    def _begin(self, work: Callable[[], Coroutine[None, None, None]], group: str) -> None:
        """Run `work` in the background, replacing the running one of its group."""
        _: Worker[None] = self.run_worker(work, group=group, exclusive=True)

    def _job_ended(self, job: Job) -> None:
        if job.state == "done":
            if job.kind == "pull":
                self._lists.note_fetched(str(job.arguments.get("reference")))
            self._begin(self._lists.refresh, "refresh")
