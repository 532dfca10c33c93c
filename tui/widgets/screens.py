"""The bases of the screens: keys, slash words and help come from a screen's command table and the app's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from app.common.terminal import printable
from quantizer.system.errors import UserError
from tui.commands import APP_COMMANDS, FEATURES, HOME, Command, CommandTable, Feature
from tui.connection import localllm_service
from tui.context import AppContext, BaseApp

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient


FEATURE_CSS = Path(__file__).with_suffix(".tcss")
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

    def all_commands(self) -> Iterator[Command]:
        yield from self.TABLE
        yield from APP_COMMANDS

    async def action_command(self, command_id: str) -> None:
        await self.run_command(command_id)

    def action_click(self, command_id: str) -> None:
        """Run the command of a click after the click: it may remove what was clicked."""
        self.call_later(self.run_command, command_id)

    async def run_command(self, command_id: str, argument: str = "") -> None:
        """Run the command with this id; KeyError if there is none."""
        if own := self.TABLE.find(command_id):
            outcome = own.run(next(each for each in self.command_targets if hasattr(each, own.method)), argument)
        elif app_command := APP_COMMANDS.find(command_id):
            outcome = app_command.run(self.app, argument)
        else:
            raise KeyError(command_id)
        if isawaitable(outcome):
            await outcome

    def command_of_word(self, word: str) -> Command | None:
        return self.TABLE.of_word(word) or APP_COMMANDS.of_word(word)

    def inform(self, text: str, for_s: float = _INFO_S) -> None:
        self.notify(printable(text), markup=False, timeout=for_s)

    def inform_during(self, text: str) -> AbstractContextManager[None]:
        return cast("BaseApp", self.app).notifications.during(text)

    def warn(self, text: str) -> None:
        self.notify(printable(text), severity="error", markup=False, timeout=_WARNING_S)

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


class NavigationBar(Widget):
    """The features in one row, the current one highlighted; each is clickable. `keys` are custom keys by command. Where
    there is no room for names and keys it shows the names, else the keys, else the current feature alone."""

    def __init__(self, current: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._current = current
        self._lines: tuple[Content, ...] = ()
        self.show(keys)

    def show(self, keys: Mapping[str, str]) -> None:
        key_of = {feature.id: keys.get(f"go-{feature.id}", feature.key) for feature in FEATURES}
        lines = (
            (self._link(each, each.title, key_of[each.id]) for each in FEATURES),
            (self._link(each, each.title) for each in FEATURES),
            (self._link(each, key=key_of[each.id]) for each in FEATURES),
            (self._link(each) for each in FEATURES if each.id == self._current),
        )
        self._lines = tuple(Content.from_markup("  ".join(filter(None, links))) for links in lines)
        self.refresh()

    def render(self) -> Content:
        n_columns = self.content_size.width
        return next((line for line in self._lines if line.cell_length <= n_columns), self._lines[-1])

    def on_resize(self) -> None:
        self.refresh()

    def _link(self, feature: Feature, title: str = "", key: str = "") -> str:
        """Return a feature as markup, or an empty text where neither its title nor its key is shown."""
        if feature.id == self._current:
            return f"[reverse] {feature.title} [/reverse]"
        shown = f"[dim]{key.upper()}[/dim]" if key else ""
        link = f"[@click=screen.command('go-{feature.id}')]{title or shown}[/]" if title or shown else ""
        return f"{link} {shown}" if title and shown else link


class KeyBar(Footer):
    """The keys at the bottom. Textual's footer makes all of them anew whenever the focus changes, three times while a
    screen opens: a third of the time that takes."""

    _shown: tuple[object, ...] = ()

    async def recompose(self) -> None:
        active = self.screen.active_bindings.values()
        shown = tuple((each.binding, each.enabled, each.tooltip) for each in active if each.binding.show)
        if shown != self._shown:
            self._shown = shown
            await super().recompose()


class FeatureScreen(CommandScreen):
    """A feature except the chat: a navigation bar at the top, keys at the bottom, Esc back to the chat. A subclass
    defines FEATURE, TABLE with its bindings, `body`, and a CSS_PATH that starts with FEATURE_CSS: Textual does not
    inherit CSS_PATH."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    FEATURE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", f"command('go-{HOME}')", "Chat", id="back", tooltip="Go back to the chat")
    ]

    def compose(self) -> ComposeResult:
        yield NavigationBar(self.FEATURE, self.app_context.settings_controller.keys)
        yield from self.body()
        yield KeyBar(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.query_one(NavigationBar).show(self.app_context.settings_controller.keys)

    def body(self) -> Iterable[Widget]:
        """Yield the widgets between the bar and the keys."""
        raise NotImplementedError

    async def service(self) -> ServiceClient:
        return await localllm_service(self.app_context.connection)
