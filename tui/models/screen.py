"""The models screen: its search field and list, the details of the selected row, and the commands for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
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
from tui.context import AppContext
from tui.models.dialogs import ModelInfoScreen, QuantizeScreen
from tui.models.lists import ModelLists
from tui.models.rows import (
    ModelRow,
    Section,
    columns,
    format_fit,
    format_rate,
    format_removal,
    format_size,
    headings,
    row_line,
)
from tui.models.typed import completed, typed_path
from tui.widgets.dialogs import ChoiceDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

if TYPE_CHECKING:
    from app.client.service_client import LibraryClient


_ACTIONS = {
    "local": "Enter starts a chat.",
    "external": "Enter starts a chat, I imports it.",
    "engine": "Enter starts a chat.",
    "remote": "Enter downloads it in the background.",
    "file": "Enter imports it: a link, no second copy.",
    "folder": "Enter opens it.",
}
_MARGIN_CELLS = 3  # the scroll bar, and air

_LOOK_S = 1.0  # between two looks at the models folder
_FOR_GOOD = "-1"
_KEEP, _REMOVE = "keep", "remove"
_REMOVING = {_KEEP: "Keep it", _REMOVE: "Remove it"}  # the harmless choice first


MODEL_COMMANDS = CommandTable(
    list_command("choose", "Chat/download", "enter",
                 "Chat with the model; a remote one is downloaded in the background", "choose"),
    list_command("search", "Search", "slash,ctrl+f", "Search local models and the hub", "focus_search"),
    list_command("card", "Info", "c", "Show the model's metadata", "show_card"),
    list_command("quantize", "Quantize", "q", "Quantize the model to a type or a size; runs as a job", "quantize"),
    list_command("import", "Import", "i", "Link a file, or another program's model, into the library", "import_model"),
    list_command("remove", "Remove", "d,delete", "Remove the model after confirmation", "remove_model"),
    list_command("load", "Load", "u", "Load the model, or unload it to free its memory", "load_or_unload"),
    list_command("keep", "Keep", "k", "Keep the model loaded, or unload it after idle time (setting keep_alive)",
                 "toggle_keep_alive", is_shown=False),
    list_command("cancel", "Stop", "x", "Stop the download; partial data is kept", "cancel"),
    list_command("look-again", "Refresh", "ctrl+r", "Rescan the disk and free memory", "rescan", is_shown=False),
)  # fmt: skip


class SearchField(Input):
    """Posts its text like Input; Down and Enter go to the list, Tab completes a path, Esc clears the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "leave_for_list", "List", show=False, id="to-list", tooltip="Go to the list"),
        Binding("enter", "leave_for_list(True)", "List", show=False, id="enter-list", tooltip="Go to the list"),
        Binding("tab", "complete", "Complete", show=False, id="complete-path", tooltip="Complete the path"),
        Binding("escape", "clear_or_leave", "Clear", show=False, id="clear-search", tooltip="Clear the text"),
    ]

    @dataclass
    class Left(Message):
        """The user goes to the list, by Enter if `is_entered`."""

        is_entered: bool = False

    def action_leave_for_list(self, is_entered: bool = False) -> None:
        self.post_message(self.Left(is_entered))

    def action_complete(self) -> None:
        path = typed_path(self.value)
        longer = completed(path) if path else path
        if longer == path:
            self.post_message(self.Left())
        else:
            self.value = longer
            self.cursor_position = len(longer)

    def action_clear_or_leave(self) -> None:
        """Clear the text; without one leave the screen, as Esc does elsewhere on it."""
        if not self.value:
            raise SkipAction
        self.value = ""
        self.post_message(self.Left())


def detail_lines(row: ModelRow) -> tuple[str, str]:
    """Return two printable lines: the facts about a row, and its actions."""
    context = f"context {row.n_ctx:,}" if row.n_ctx else ""
    state = {"ready": "loaded", "loading": "loading", "failed": "failed to load"}.get(row.state, "")
    if state == "loaded" and not row.is_staying:
        state = "loaded, unloads when idle"
    name = row.reference or (row.model if row.kind in ("file", "folder") else row.name)
    speed = f"about {format_rate(row.fit)}" if format_rate(row.fit) else ""
    type_ = row.type if row.type not in name else ""
    facts = (name, format_size(row.n_bytes), type_, format_fit(row.fit), speed, context, row.takes, state)
    action = "X stops it." if row.job_id else "" if row.damaged or row.is_arriving else _ACTIONS[row.kind]
    notes = (row.damaged, row.progress, action, row.note)
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

    @property
    def row_id(self) -> str:
        option = self.highlighted_option
        return (option.id or "") if option is not None else ""

    def show(self, sections: Sequence[Section]) -> None:
        """Show `sections`; if the rows are the same, redraw only changed text."""
        self._sections = tuple(sections)
        width = max(20, self.size.width - _MARGIN_CELLS)
        at, options = columns(width), list[Option]()
        for number, section in enumerate(sections):
            title = printable_line(section.title) if number else headings(section.title, at)
            options.append(Option(Content.styled(title, "bold"), id=f"heading-{number}", disabled=True))
            options += (Option(Content(row_line(row, at)), id=row.id) for row in section.rows)
            if section.note:
                # A list cuts lines that are too long, and the end of a note is what to do.
                lines = wrap(printable_line(section.note), width, initial_indent="  ", subsequent_indent="  ")
                options.append(Option(Content("\n".join(lines)), id=f"note-{number}", disabled=True))
        shape = tuple(option.id for option in options)
        if shape == self._shape:
            for index, option in enumerate(options):
                if str(self.get_option_at_index(index).prompt) != str(option.prompt):
                    self.replace_option_prompt_at_index(index, option.prompt)
            return
        chosen, has_moved, self._shape = self.row_id, self.highlighted != self._first, shape
        self.set_options(options)
        is_kept = has_moved and chosen in shape
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
        self._lists = ModelLists(app_context.connection, app_context.jobs, lambda: self.post_message(self.Changed()))

    def body(self) -> Iterable[Widget]:
        yield SearchField(placeholder="/ searches local models and the hub, or takes a path", select_on_focus=False)
        yield ModelList()
        yield Static(id="model-detail", markup=False)

    def on_mount(self) -> None:
        self.rows.focus()
        self._show()
        self._begin(self._lists.recommend, "recommend")
        self.app_context.jobs.on_end(self._job_ended)
        self._watch = self.set_interval(_LOOK_S, self._look)

    def on_screen_resume(self) -> None:
        """Refresh: files may have changed in the meantime."""
        self._begin(self._lists.refresh, "refresh")
        self._watch.resume()

    def on_screen_suspend(self) -> None:
        self._watch.pause()

    async def _look(self) -> None:
        is_refreshing = any(worker.group == "refresh" and not worker.is_finished for worker in self.workers)
        if not is_refreshing and await self._lists.has_changed():
            self._begin(self._lists.refresh, "refresh")

    @property
    def rows(self) -> ModelList:
        return self.query_one(ModelList)

    @property
    def row(self) -> ModelRow | None:
        return self._lists.row(self.rows.row_id)

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

    @on(Changed)
    def _show(self) -> None:
        self.rows.show(self._lists.sections())
        self._show_detail()

    # Commands

    def focus_search(self) -> None:
        self.set_focus(self.query_one(SearchField))  # at once: the next key may be queued already

    def rescan(self) -> None:
        self._begin(partial(self._lists.refresh, is_fresh=True), "refresh")

    async def run_command(self, command_id: str, argument: str = "") -> None:
        """Run the command with this id; show a UserError like a note."""
        with self.inform_on_error():
            await super().run_command(command_id, argument)

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
                self.inform("Already downloading: X stops it.")
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

    async def show_card(self) -> None:
        if row := self._local_row():
            self.app.push_screen(ModelInfoScreen(row.name, await (await self._library()).show(row.model)))

    @work(group="quantize", exclusive=True)
    async def quantize(self) -> None:
        row = self._local_row()
        if row is None:
            return
        with self.inform_on_error():
            with self.inform_during(f"Preparing: computing the sizes that {row.name} would have …"):
                choices = await (await self._library()).types(row.model)
            if not self.is_current:
                return  # the user has gone on: keys typed elsewhere must not start a job
            chosen = await self.app.push_screen_wait(QuantizeScreen(row.name, row.n_bytes, choices))
            if chosen is not None:
                service = await self.service()
                source = "guide" if row.name == "guide" else row.model
                await service.start_job("quantize", {"source": source, **chosen})
                self.inform(f"Quantizing {row.name} has started: F8 shows the jobs.")

    async def import_model(self) -> None:
        """Link the row's file into the library; on other rows begin a path, for which files are offered."""
        row = self.row
        if row is not None and row.kind in ("external", "file"):
            await self._import(row)
            return
        await self._library()  # an engine of another program has none: say so
        self._type(f"~{os.sep}")
        self.focus_search()

    async def _import(self, row: ModelRow) -> None:
        if self._lists.holds(row.model):
            self.inform(f"{row.name} is in the models folder already.")
            return
        name = await (await self._library()).import_model(row.model)
        self._type("")
        self.inform(f"{name} is imported; it shares disk space with the original.")
        self.rescan()

    def _type(self, text: str) -> None:
        field = self.query_one(SearchField)
        field.value = text
        field.cursor_position = len(text)

    @work
    async def remove_model(self) -> None:
        row = self._local_row()
        if row is None:
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
            self.inform("This row has no download.")
            return
        await (await self.service()).cancel_job(row.job_id)
        self.inform("Stopped. Partial data is kept: Enter resumes.")

    # Helpers

    def _local_row(self) -> ModelRow | None:
        row = self.row
        if row is None or row.kind in ("remote", "file", "folder"):
            is_remote = row is None or row.kind == "remote"
            missing = "downloaded: Enter downloads" if is_remote else "imported: I imports"
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
            self._begin(self._lists.refresh, "refresh")
