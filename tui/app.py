"""The Textual app: its features, theme, keys and notifications, and the commands that work on every screen."""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.constants import DEFAULT_THEME
from textual.content import Content
from textual.events import DescendantFocus, Event, InputEvent, Key, Paste, Resize
from textual.geometry import Size
from textual.widgets import Input, TextArea
from textual.widgets.text_area import Selection
from textual.worker import WorkerFailed

from app.chat.compaction import AutoCompaction
from app.chat.repository import ChatRepository, InMemoryChatRepository
from app.chat.state import Clock
from app.common.help_topics import read_topic
from app.common.terminal import printable, printable_line, printable_paste
from app.connection import ServiceConnection, find_model, local_models
from app.settings.settings import Settings
from app.tools.backend import ToolBackend
from app.tools.lazy import LazyTools
from quantizer.system.errors import UserError
from quantizer.system.process import stop_job
from tui.chat.screen import ChatScreen
from tui.chat.session import ChatSession
from tui.commands import FEATURES, HOME
from tui.context import AppContext, BaseApp
from tui.design.colors import design_colors
from tui.design.key_names import format_keys
from tui.jobs.monitor import Downloads, JobMonitor, QuitFlow, ending, is_long, model_of
from tui.key_queue import KeyQueue
from tui.models.first_run import mark_welcome_seen
from tui.settings.controller import SettingsController
from tui.settings.themes import (
    HIGH_CONTRAST,
    NO_COLOR_CSS,
    CachedStylesheet,
    WithoutColors,
    find_theme,
    theme_choices,
)
from tui.widgets.dialogs import ChoiceDialog
from tui.widgets.notifications import Severity
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.await_remove import AwaitRemove
    from textual.dom import DOMNode
    from textual.screen import Screen
    from textual.widget import Widget

    from app.cli.prompts import ChatOptions
    from app.protocol.job import Job
    from tui.models.welcome import WelcomeScreen
    from tui.palette import PaletteEntry


_MIN_COLUMNS, _MIN_ROWS = 12, 4  # below, Textual's widgets have no cell left for their text, and fail
_TOO_SMALL = "\x1b[2J\x1b[H↔"
_NOTICE_S = 30.0  # long enough while reading something else
_LOSS = "Lost the service: reconnecting. Your messages are saved; F8 lists interrupted jobs."
_ENGINE_LOSS = "Lost the connection to {url}: reconnecting. Your messages are saved."


def _at_least(size: Size) -> Size:
    return Size(max(size.width, _MIN_COLUMNS), max(size.height, _MIN_ROWS))


class LocalllmApp(BaseApp):
    """localllm in a terminal. It paints first and connects afterwards; the caller closes the connection and the
    repository. `is_welcoming` shows the welcome screen first; `opening` says how the first chat begins."""

    TITLE = "localllm"
    DEFAULT_MODE = HOME
    CSS_PATH: ClassVar[Any] = "design/design.tcss"
    CSS = NO_COLOR_CSS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Copy", show=False, priority=True, id="interrupt"),
        Binding("ctrl+z", "suspend_to_shell", "Suspend", show=False, priority=True, id="suspend"),
        # Here, not on the screens, so that dialogs have them too; with priority, since a text field takes Esc.
        Binding("escape", "dismiss_notifications", "Dismiss", show=False, priority=True, id="notifications-dismiss"),
        Binding("alt+n", "show_notifications", "Notifications", show=False, priority=True, id="notifications"),
    ]

    def __init__(
        self,
        connection: ServiceConnection,
        repository: ChatRepository | None = None,
        clock: Clock = time.monotonic,
        settings: Settings | None = None,
        *,
        is_welcoming: bool = False,
        settings_controller: SettingsController | None = None,
        tools: ToolBackend | None = None,
        opening: ChatOptions | None = None,
    ) -> None:
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # empty means unset, but Textual would turn colours off
        super().__init__(clock)
        self.stylesheet = CachedStylesheet(variables=self.get_css_variables())
        if self.no_color:
            self._filters.append(WithoutColors())
        self._is_welcoming = is_welcoming
        self._welcome_screen: WelcomeScreen | None = None  # the last one that was opened
        self._is_too_small = self._quits_at_next = False
        self._recent_entries: list[PaletteEntry] = []  # of the palette
        self._keys = KeyQueue(self, self._dispatch_key)
        self.animation_level = "none"
        settings = settings or Settings()
        repository = repository or InMemoryChatRepository()
        tools = tools or LazyTools(settings)
        controller = settings_controller or SettingsController(settings)
        self.app_context = AppContext(
            connection=connection,
            downloads=Downloads(connection),
            jobs=JobMonitor(connection),
            repository=repository,
            session=ChatSession(
                connection,
                repository,
                clock,
                tools=tools,
                compaction=lambda: AutoCompaction.of(controller.settings),
                keeps_file_texts=lambda: controller.settings.draft_corpus,
            ),
            tools=tools,
            settings=settings,
            settings_controller=controller,
            clock=clock,
            opening=opening,
        )
        self._settings_controller = controller
        controller.on_change("theme", self._apply_theme)
        controller.on_change("keys", self._apply_keys)
        controller.on_change("model", self._apply_default_model)
        self.register_theme(HIGH_CONTRAST)
        self._quit_flow = QuitFlow(self, self.app_context.jobs, connection, controller)
        self.app_context.jobs.on_end(self._notify_job_end)
        self._loss = _ENGINE_LOSS.format(url=settings.connect) if settings.connect else _LOSS
        self._is_lost = False
        connection.on_disconnect(self._lose_service)
        connection.watch(self._find_service_again)
        for feature in FEATURES:
            self.add_mode(feature.id, partial(feature.new_screen, self.app_context))

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's variables with the colours of this design. The theme of high contrast has its own."""
        variables = super().get_css_variables()
        if self.theme != HIGH_CONTRAST.name:
            variables |= design_colors(variables)
        self.theme_variables = variables
        return variables

    def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # the shell has drawn over it
        if self.app_context.settings.theme:
            self._apply_theme()
        if self.app_context.settings.keys:
            self.set_keymap(dict(self.app_context.settings.keys))  # early presses must not be lost before validation
            self.call_after_refresh(self._apply_keys)
        self.call_after_refresh(self.run_worker, self._preload, thread=True)
        self.run_worker(self.app_context.jobs.run(), group="jobs")
        if self._is_welcoming:
            self.call_after_refresh(self._welcome)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Severity = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a notification in one line instead of Textual's boxes, which cover what is read."""
        text = Content.from_markup(message).plain if markup else message
        for_s = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        self.notifications.add(f"{title}: {text}" if title else text, severity, for_s)

    def show_notifications(self) -> None:
        self.notifications.show_all()

    def action_dismiss_notifications(self) -> None:
        """Dismiss the notification, and let Esc do what it does: a key that only removes a line nobody reads leaves the
        user on a screen where the text typed next would run as keys."""
        self.notifications.dismiss()
        raise SkipAction

    def action_command_palette(self) -> None:
        from tui.palette import PaletteScreen  # it imports every screen

        if isinstance(screen := self.screen, CommandScreen):  # a dialog has no commands
            self.push_screen(PaletteScreen(screen, self._recent_entries))

    # Bindings of the app itself call the same methods in a dialog, which has no command table.
    action_show_notifications = show_notifications

    async def on_event(self, event: Event) -> None:
        """Remove control sequences from pasted text, whichever field receives it, and keep keys in their order."""
        if isinstance(event, Paste):
            event.text = printable_paste(event.text)
        if isinstance(event, Resize):
            self._fit(event)
        if isinstance(event, InputEvent | Paste) and (self._exit or not self.screen_stack):
            return  # pressed while the app ends: nothing is there to take it
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            await self._keys.add(event)
        else:
            await super().on_event(event)

    async def _dispatch_key(self, event: Key | Paste) -> None:
        is_text = isinstance(event, Paste) or event.is_printable
        if is_text:
            self._quits_at_next = False
        if is_text and (welcome := self._welcome_screen) is not None and welcome is self.screen:
            if isinstance(event, Key) and welcome.holds(event):
                return
            held = welcome.release()
            welcome.dismiss(False)  # at once: this key and those behind it are for the prompt
            if held is not None:
                await super().on_event(held)
        if isinstance(event, Key) and not isinstance(self.focused, Input | TextArea):
            screen = self.screen
            keys = (event.key, *event.aliases, event.key.lower())
            bound = (screen.active_bindings.get(key) for key in keys)
            dead = (active.binding.id or "" for active in bound if active is not None and not active.enabled)
            if isinstance(screen, CommandScreen) and any(
                (command := screen.TABLE.find(each)) is not None and command.takes_text for each in dead
            ):
                self.drop_typed_ahead()
        await super().on_event(event)

    async def on_key(self, event: Key) -> None:
        """Let a capital that nothing takes be its letter: keys are shown as capitals, and Caps Lock may be on."""
        bound = self.screen.active_bindings
        if len(event.key) == 1 and event.key.isupper() and event.key not in bound:
            active = bound.get(event.key.lower())
            if active is not None and active.enabled:
                event.prevent_default()
                await self.run_action(active.binding.action, active.node)

    def drop_typed_ahead(self) -> None:
        self._keys.drop_typed_ahead()

    @property
    def size(self) -> Size:
        """The size of the terminal, or the smallest that the screens are laid out for."""
        return _at_least(super().size)

    def _fit(self, event: Resize) -> None:
        """Lay nothing out for a terminal that is too small, and draw nothing on it."""
        was_too_small, self._is_too_small = self._is_too_small, event.size != _at_least(event.size)
        event.size = _at_least(event.size)
        if self._is_too_small and self._driver is not None and not self.is_headless:
            self._driver.write(_TOO_SMALL)
            self._driver.flush()
        elif was_too_small:
            self.call_after_refresh(self.refresh, layout=True)  # its size may be as it was laid out before

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, None if self._is_too_small else renderable)

    @on(DescendantFocus)
    def _stop_blinking(self, event: DescendantFocus) -> None:
        """Keep the cursor of every field still: nothing on the screen moves by itself, the palette included."""
        if isinstance(event.widget, Input | TextArea):
            event.widget.cursor_blink = False

    @property
    def failure(self) -> Exception | None:
        """The uncaught error that ended the app; the caller reports it."""
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) else error  # type: ignore[return-value]

    def fail(self, error: Exception) -> None:
        """End with an error, like an error of a screen."""
        self._handle_exception(error)

    def _fatal_error(self) -> None:
        """End without Textual's report: it prints local variables, which may contain chats."""
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        """Print no errors, for the same reason."""
        if self._exception is None:
            super()._print_error_renderables()

    def _prune(self, *nodes: Widget, parent: DOMNode | None = None) -> AwaitRemove:
        """Remove widgets, and cancel what works for them first: Textual does once their children are gone, which a
        worker that goes on meanwhile would not find."""
        for node in nodes:
            for removed in node.walk_children(with_self=True):
                self.workers.cancel_node(removed)
        return super()._prune(*nodes, parent=parent)

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        await self.go_to(HOME)
        assert isinstance(self.screen, ChatScreen)
        await self.screen.open_chat(chat_id, message_id)

    async def chat_with_newest(self) -> None:
        if self.app_context.downloads.newest:
            await self.app_context.connection.use_model(self.app_context.downloads.newest)
            await self.go_to(HOME)
        else:
            self.notify("No model was downloaded in this session: F6 lists models to download.", markup=False)

    async def choose_model(self, name: str) -> None:
        if not name:
            await self.go_to("models")
            return
        model = find_model(name, await local_models(self.app_context.connection))
        await self.app_context.connection.use_model(model.path)
        await self.go_to(HOME)

    async def plan_model(self, name: str) -> None:
        from tui.plan.screen import PlanScreen

        await self.go_to("plan")
        if isinstance(screen := self.screen, PlanScreen):
            await screen.use_model(name)

    def show_help(self, topic: str = "") -> None:
        from tui.widgets.help import GuidePage, HelpScreen

        if topic:
            self.push_screen(GuidePage(read_topic(topic)))
        elif isinstance(screen := self.screen, CommandScreen):
            self.push_screen(HelpScreen(screen.help_sections()))

    def change_theme(self, name: str = "") -> None:
        """Use the theme called `name`; without one, let the person choose. Raises UsageError for an unknown one."""
        self._use_theme(find_theme(name, self.available_themes) if name else None)

    @work
    async def _use_theme(self, chosen: str | None) -> None:
        hint = "Saved to the settings file. NO_COLOR in the environment turns colours off."
        if chosen is None:
            chosen = await self.push_screen_wait(ChoiceDialog("Theme", hint, theme_choices(self.available_themes)))
        if chosen is None:
            return
        try:
            changed = await self._settings_controller.change("theme", chosen)
        except UserError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
        else:
            self.notify(printable(changed), markup=False)

    def _apply_theme(self) -> None:
        theme = self._settings_controller.settings.theme or DEFAULT_THEME
        if theme in self.available_themes:
            self.theme = theme
        else:
            self._warn(f"Unknown theme in the settings: {theme}. F10 lists the themes.")

    def _apply_default_model(self) -> None:
        self.app_context.connection.default_model = self._settings_controller.text("model")

    def _apply_keys(self) -> None:
        from tui.settings.controller import check_keys  # imports every screen, after the first frame

        try:
            check_keys(self._settings_controller.keys)
        except UserError as error:
            self._settings_controller.drop_keys()
            self._warn(f"The key settings are ignored. {error}")
        self.set_keymap(dict(self._settings_controller.keys))

    def _lose_service(self) -> None:
        self._is_lost = True
        self._warn(self._loss)

    def _find_service_again(self) -> None:
        """Take the news of a loss back once the service is there again, or said to be gone for good."""
        phase = self.app_context.connection.state.phase
        if self._is_lost and phase in ("loading", "ready", "unloaded", "failed"):
            self._is_lost = False
            self.notifications.withdraw(self._loss)
            if phase != "failed":
                self.notify("Connected again.", markup=False)

    def _warn(self, text: str) -> None:
        self.notify(printable(text), severity="warning", timeout=_NOTICE_S, markup=False)

    async def interrupt(self) -> None:
        """Copy the selection; else stop what runs in the chat; else clear its line; else quit at the second press."""
        screen, focused = self.screen, self.screen.focused
        text = getattr(focused, "selected_text", "") or screen.get_selected_text()
        is_second, self._quits_at_next = self._quits_at_next, False
        if text:
            self.copy_to_clipboard(text)
            screen.clear_selection()  # the next Ctrl+C stops the answer
            if isinstance(focused, TextArea):
                focused.selection = Selection.cursor(focused.cursor_location)
            self.notify(f"Copied {len(text)} characters.", markup=False)
        elif isinstance(screen, ChatScreen) and screen.can_stop:
            await screen.stop_answer()
        elif isinstance(screen, ChatScreen) and screen.clear_line():
            pass
        elif is_second:
            self.quit_app()
        else:
            self._quits_at_next = True
            key = format_keys(self._settings_controller.keys.get("interrupt", "ctrl+c"))
            self.notify(f"{key} again quits localllm.", markup=False)

    action_interrupt = interrupt

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave keys to the screens' commands of the same name, except in dialogs, which have none of them. Keep a
        notification that cannot have been noticed yet."""
        if action == "dismiss_notifications":
            return self.notifications.is_noticed
        if action in {"interrupt", "suspend_to_shell"}:
            return self.screen.is_modal
        return super().check_action(action, parameters)

    def suspend_to_shell(self) -> None:
        """Stop the process, as Ctrl+Z does with any program, until the shell resumes it."""
        if sys.platform == "win32" or self._driver is None or not self._driver.can_suspend:
            return
        if os.getpgrp() == os.getsid(0):  # the first program of its terminal: nothing could resume it
            self.notify("There is no shell to go to: Ctrl+Q quits localllm.", markup=False)
        else:
            self._suspend_signal()
            stop_job()

    action_suspend_to_shell = suspend_to_shell

    async def action_quit(self) -> None:
        """Quit; Textual binds Ctrl+Q to this before any screen's keys."""
        self.quit_app()

    def quit_app(self) -> None:
        self._quit_flow.quit()

    def quit_without_asking(self) -> None:
        self._quit_flow.quit_without_asking()

    def _notify_job_end(self, job: Job) -> None:
        if not self.app_context.downloads.note_end(job):
            self.notify(ending(job), severity="error" if job.error else "information", markup=False)
        else:
            name = printable_line(str(job.arguments["reference"]))
            if model_of(job):
                self.notify(f"Ctrl+T chats with the new model: {name}", timeout=_NOTICE_S, markup=False)
            elif job.state == "failed" and job.error is not None:
                text = printable_line(f"{name}: download failed. {job.error.cause} {job.error.remedy}")
                self.notify(text, severity="error", timeout=_NOTICE_S, markup=False)
        if is_long(job) or not self.app_focus:
            self.bell()

    def _welcome(self) -> None:
        """Show the welcome on the first run, unless the user has begun to do something else."""
        chat = self.screen
        if isinstance(chat, ChatScreen) and not chat.prompt.text and not chat.is_answering:
            self.show_welcome()
        else:
            self.notify("/welcome shows models that suit this machine.", markup=False)

    def show_welcome(self) -> None:
        from tui.models.welcome import WelcomeScreen

        def mark_seen(has_looked: bool | None) -> None:
            if has_looked:
                mark_welcome_seen(self.app_context.settings)

        keys = {"i": partial(self._go_and_run, "models", "import"), "s": partial(self._go_and_run, "models", "search")}
        self._welcome_screen = WelcomeScreen(self.app_context.connection, self.app_context.downloads, keys)
        self.push_screen(self._welcome_screen, mark_seen)

    async def _go_and_run(self, feature_id: str, command_id: str) -> None:
        await self.go_to(feature_id)
        if isinstance(screen := self.screen, CommandScreen):
            await screen.run_command(command_id)

    def _preload(self) -> None:
        """Import what would delay the first answer by half the time of the first frame. Then keep what the start made
        out of garbage collection: going through it stopped the app for 0.1 s every few seconds of an answer."""
        for name in ("rich.markdown", "rich.syntax", "pygments.lexers.python"):
            import_module(name)
        if not self.is_headless:  # a process of tests has many apps, of which nothing may stay
            gc.freeze()
            gc.enable()  # disabled by `tui.__main__`
