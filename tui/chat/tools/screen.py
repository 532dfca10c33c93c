"""The tools of a chat in one list: servers and their tools with switches, folders, what was decided, and the rounds.
Owns the list and its keys. What is changed, and what the tools cost, is `app.chat.tools_editor`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.tool_switches import is_on, rule_text, summary
from app.chat.tools_editor import ToolsEditor
from app.common.terminal import counted, printable, printable_line
from app.tools.tool import Effect, ServerStatus, ServerTool
from quantizer.system.errors import UserError
from tui.chat.composer.attachments import complete_path
from tui.widgets.dialogs import InputDialog

_EFFECTS = {
    Effect.READ: "Reads in the folders of this chat.",
    Effect.WRITE: "Changes files in the folders of this chat; /undo takes it back.",
    Effect.RUN: "Runs a command with all your rights.",
    Effect.FETCH: "Fetches from the network.",
    Effect.UNKNOWN: "A tool of another program: what it does is known to that only.",
}
_SERVER, _TOOL, _FOLDER, _RULE, _ROUNDS, _ADD = "server", "tool", "folder", "rule", "rounds", "add"
_HELP = {
    _FOLDER: "Tools read and write here and below. Del removes it.",
    _RULE: "Del removes it: the next such call is asked about.",
    _ROUNDS: "How often an answer may call tools before you are asked whether it goes on. Space changes it.",
    _ADD: "Space adds a folder: tools for files reach nothing outside of the folders here.",
}
_N_NOTES = 4  # of a server, whole below the list: the last ones say what is wrong
_FOLDER_HINT = "Tools read and write in this folder and below; Right completes a name."
_ROUNDS_HINT = "Rounds of calls in one answer, before you are asked whether it goes on."


class FolderSuggester(Suggester):
    """Suggests the first folder that begins with what is typed."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        names = complete_path(value, Path.cwd()) if value else []
        return next((name for name in names if name.endswith("/") and printable_line(name) == name), None)


class ToolsScreen(ModalScreen[None]):
    """Shows the tools of the chat that `editor` edits, and changes them at once."""

    CSS_PATH = "../chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Close", id="tools-close", tooltip="Go back to the chat"),
        Binding("space", "act", "Switch", id="tools-switch", tooltip="Switch the tool, or change what is chosen"),
        Binding("delete", "remove", "Remove", id="tools-remove", tooltip="Remove the folder or the decision"),
        Binding("a", "add_folder", "Add a folder", id="tools-folder", tooltip="Add a folder for the tools"),
        Binding("l", "list_all", "List", id="tools-list", tooltip="Start every server and list its tools"),
    ]

    def __init__(self, editor: ToolsEditor) -> None:
        super().__init__()
        self._editor = editor
        self._servers: Sequence[ServerStatus] = ()
        self._n_tokens: int | None = None
        self._tools: dict[str, ServerTool] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="tools") as panel:
            panel.border_title = "Tools of this chat"
            panel.border_subtitle = "Space switches · A adds a folder · Del removes · L lists · Esc"
            yield Static("…", markup=False, id="summary")
            yield OptionList(markup=False, compact=True)
            yield Static("", markup=False, id="about")

    def on_mount(self) -> None:
        self._load()

    # Keys

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_act()

    def action_act(self) -> None:
        kind, name = self._chosen
        if kind == _SERVER:
            server = next(each for each in self._servers if each.name == name)
            self._change(self._editor.switch(name, is_switched_on=not is_on(self._editor.settings, server)))
        elif kind == _TOOL:
            tool = self._tools[name]
            is_switched_on = not self._editor.settings.has(tool.server, tool.name)
            self._change(self._editor.switch(name, is_switched_on=is_switched_on))
        elif kind == _ROUNDS:
            value = str(self._editor.settings.max_rounds)
            dialog = InputDialog("Rounds of calls", self._set_rounds, value=value, explanation=_ROUNDS_HINT)
            self.app.push_screen(dialog)
        elif kind == _ADD:
            self.action_add_folder()

    def action_remove(self) -> None:
        kind, name = self._chosen
        if kind == _FOLDER:
            self._change(self._editor.drop_folder(name))
        elif kind == _RULE:
            self._change(self._editor.forget_rule(int(name)))

    def action_add_folder(self) -> None:
        folder = FolderSuggester()
        dialog = InputDialog("Folder for tools", self._add_folder, explanation=_FOLDER_HINT, suggester=folder)
        self.app.push_screen(dialog)

    def action_list_all(self) -> None:
        self.query_one("#summary", Static).update("Asking every server for its tools …")
        self._load(starts_all=True)

    async def _add_folder(self, path: str) -> None:
        await self._editor.add_folder(path)
        self._show()

    async def _set_rounds(self, text: str) -> None:
        await self._editor.run(f"rounds {text.strip()}")
        self._show()

    # What is shown

    @work(exclusive=True, group="tools")
    async def _load(self, *, starts_all: bool = False) -> None:
        self._servers = await self._editor.servers(start=starts_all)
        self._show()
        self._n_tokens = await self._editor.n_tokens(self._servers)
        self._show()

    @work(exclusive=True, group="tools")
    async def _change(self, change: Awaitable[str]) -> None:
        try:
            await change
        except UserError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
        self._servers = await self._editor.servers()
        self._n_tokens = await self._editor.n_tokens(self._servers)
        self._show()

    def _show(self) -> None:
        options = self.query_one(OptionList)
        index = options.highlighted or 0
        self._tools = {f"{tool.server}/{tool.name}": tool for server in self._servers for tool in server.tools}
        options.clear_options()
        options.add_options(list(self._rows()))
        options.highlighted = min(index, options.option_count - 1)
        self.query_one("#summary", Static).update(summary(self._editor.settings, self._servers, self._n_tokens))

    def _rows(self) -> Iterator[Option]:
        settings = self._editor.settings
        for server in self._servers:
            origin = f"  {printable_line(server.origin)}" + (", not started" if server.state == "stopped" else "")
            title = Text(f"{_box(is_on(settings, server))} {printable_line(server.name)}", "bold").append(origin, "dim")
            yield Option(title, f"{_SERVER} {server.name}")
            if server.problem:
                yield Option(Text(f"    ! {printable_line(server.problem)}"), disabled=True)
            for note in server.notes:
                yield Option(Text(f"    {printable_line(note)}", "dim"), disabled=True)
            for tool in server.tools:
                text = Text(f"    {_box(settings.has(server.name, tool.name))} {printable_line(tool.name)}")
                text.append(f"  {printable_line(tool.definition.description)}", "dim")
                yield Option(text, f"{_TOOL} {server.name}/{tool.name}")
        for folder in settings.folders:
            yield Option(Text(f"folder   {printable_line(folder)}"), f"{_FOLDER} {folder}")
        yield Option(Text("folder   add one …"), _ADD)
        for index, rule in enumerate(settings.rules):
            yield Option(Text(f"decided  {rule_text(rule)}"), f"{_RULE} {index}")
        yield Option(Text(f"rounds   at most {settings.max_rounds} an answer"), _ROUNDS)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        kind, name = self._chosen
        about = _HELP.get(kind, "")
        if kind == _TOOL:
            tool = self._tools[name]
            about = f"{_EFFECTS[tool.effect]}\n{printable_line(tool.definition.description)}"
        elif kind == _SERVER:
            server = next(each for each in self._servers if each.name == name)
            started = "no tools" if server.state == "ready" else "its tools are listed once it is started"
            listed = [counted(len(server.tools), "tool") if server.tools else started]
            listed += [f"prompts: {', '.join(map(printable_line, server.prompts))}"] if server.prompts else []
            listed += [f"resources: {', '.join(map(printable_line, server.resources))}"] if server.resources else []
            about = "\n".join(("; ".join(listed), *map(printable_line, server.notes[-_N_NOTES:])))
        self.query_one("#about", Static).update(about)

    @property
    def _chosen(self) -> tuple[str, str]:
        """The kind of the highlighted row and its name; two empty texts without one."""
        option = self.query_one(OptionList).highlighted_option
        kind, _, name = (option.id or "" if option is not None else "").partition(" ")
        return kind, name


def _box(is_checked: bool) -> str:
    return "☑" if is_checked else "☐"
