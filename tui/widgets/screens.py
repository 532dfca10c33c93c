"""The bases of the screens: keys, slash words and help come from a screen's command table and the app's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from app.common.terminal import printable, printable_line
from app.connection import localllm_service
from quantizer.system.errors import UsageError, UserError
from tui.commands import APP_COMMANDS, HOME, Command, CommandTable
from tui.context import AppContext, BaseApp
from tui.design.header import ScreenHeader
from tui.design.key_bar import KeyBar

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from tui.widgets.help import HelpSections


FEATURE_CSS = Path(__file__).with_suffix(".tcss")
_Part = TypeVar("_Part", bound=Widget)
_INFO_S = 4.0
_WARNING_S = 10.0


class CommandScreen(Screen[None]):
    """A screen to stay in. A class with a TABLE of its own also sets `BINDINGS = TABLE.bindings()`; KEYS are the keys
    of its widgets, for help. A command is a method of one of its `command_targets`, the screen and its parts."""

    TABLE: ClassVar[CommandTable]
    KEYS: ClassVar[tuple[Binding, ...]] = ()
    BINDINGS = APP_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__()
        self.app_context = app_context
        self.command_targets: tuple[object, ...] = (self,)

    def on_mount(self) -> None:
        self.call_after_refresh(cast("BaseApp", self.app).notifications.draw)

    def on_screen_resume(self) -> None:
        """Show the notification that came meanwhile. Textual calls the handlers of subclasses too."""
        cast("BaseApp", self.app).notifications.draw()

    def own(self, kind: type[_Part]) -> list[_Part]:
        """Return the screen's own parts of a `kind`, none while the app closes. A query would pass through every
        message, several times for each event of an answer."""
        return [part for part in self.children if isinstance(part, kind)]

    def all_commands(self) -> Iterator[Command]:
        yield from self.TABLE
        yield from APP_COMMANDS

    def help_sections(self) -> HelpSections:
        """Return the keys and commands by where they are of use."""
        from tui.widgets.help import help_rows

        keys = self.app_context.settings_controller.keys
        return {
            "This screen": tuple(help_rows(self.KEYS, self.TABLE, keys)),
            "Everywhere": tuple(help_rows((), APP_COMMANDS, keys)),
        }

    async def action_command(self, command_id: str) -> None:
        await self.run_command(command_id)

    def action_click(self, command_id: str) -> None:
        """Run the command of a click after the click: it may remove what was clicked."""
        self.call_later(self.run_command, command_id)

    async def run_command(self, command_id: str, argument: str = "") -> bool:
        """Run the command with this id, KeyError if there is none. Return False for one that refused, after its
        UserError was shown."""
        target: object = self.app
        if command := self.TABLE.find(command_id):
            target = next(each for each in self.command_targets if hasattr(each, command.method))
        elif (command := APP_COMMANDS.find(command_id)) is None:
            raise KeyError(command_id)
        try:
            if argument and not command.argument:
                raise UsageError(f"Nothing may follow /{command.slash}.", f"Remove “{printable_line(argument)}”.")
            outcome = command.run(target, argument)
            if isawaitable(outcome):
                await outcome
        except UserError as error:
            self.refuse(str(error))
            return False
        return True

    def command_of_word(self, word: str) -> Command | None:
        return self.TABLE.of_word(word) or APP_COMMANDS.of_word(word)

    def inform(self, text: str, for_s: float = _INFO_S) -> None:
        self.notify(printable(text), markup=False, timeout=for_s)

    def inform_during(self, text: str) -> AbstractContextManager[None]:
        return cast("BaseApp", self.app).notifications.during(text)

    def warn(self, text: str) -> None:
        self.notify(printable(text), severity="error", markup=False, timeout=_WARNING_S)

    def refuse(self, text: str) -> None:
        """Show why a command does nothing, and drop the keys that were typed for what it would have opened."""
        cast("BaseApp", self.app).drop_typed_ahead()
        self.warn(text)

    @contextmanager
    def warn_on_error(self) -> Iterator[None]:
        """Show a UserError of the block as an error."""
        try:
            yield
        except UserError as error:
            self.warn(str(error))

    @contextmanager
    def inform_on_error(self, kind: type[UserError] = UserError) -> Iterator[None]:
        try:
            yield
        except kind as error:
            self.inform(str(error))


class FeatureScreen(CommandScreen):
    """A feature except the chat: where one is at the top, keys at the bottom, Esc back to the chat. A subclass
    defines FEATURE, TABLE with its bindings, `body`, and a CSS_PATH that starts with FEATURE_CSS: Textual does not
    inherit CSS_PATH."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    FEATURE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", f"command('go-{HOME}')", "Chat", id="back", tooltip="Go back to the chat")
    ]

    def compose(self) -> ComposeResult:
        yield ScreenHeader(self.FEATURE, self.app_context.settings_controller.keys)
        yield from self.body()
        yield KeyBar()

    def on_screen_resume(self) -> None:
        header = self.query_one(ScreenHeader)
        header.show_keys(self.app_context.settings_controller.keys)
        self.show_facts(header)

    def show_facts(self, header: ScreenHeader) -> None:
        """Show what matters on this screen at the right of its header: the model, unless a subclass knows better."""
        header.show_model(self.app_context.connection.state)

    def body(self) -> Iterable[Widget]:
        """Yield the widgets between the bar and the keys."""
        raise NotImplementedError

    async def service(self) -> ServiceClient:
        return await localllm_service(self.app_context.connection)
