"""What every screen shares: the parts of the app, and what a screen may ask of the app itself. Below the screens and
above the features' data, so that nobody imports `tui.app` back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.app import App

from app.chat.repository import ChatRepository
from app.chat.state import Clock
from app.connection import ServiceConnection
from app.settings.settings import Settings
from app.tools.backend import ToolBackend
from tui.chat.session import ChatSession
from tui.jobs.monitor import Downloads, JobMonitor
from tui.pictures.picture_view import Previews
from tui.settings.controller import SettingsController
from tui.widgets.notifications import NotificationCenter

if TYPE_CHECKING:
    from app.cli.prompts import ChatOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """The parts that all screens share. Whoever creates the app closes `connection` and `repository`; `clock` counts
    seconds. `opening` are the options of the command line for the first chat."""

    connection: ServiceConnection
    downloads: Downloads
    jobs: JobMonitor
    repository: ChatRepository
    session: ChatSession
    tools: ToolBackend
    settings: Settings
    settings_controller: SettingsController
    clock: Clock
    opening: ChatOptions | None = None
    previews: Previews = field(default_factory=Previews)


class BaseApp(App[None]):
    """The app as its screens see it; `tui.app.LocalllmApp` is the one there is."""

    app_context: AppContext

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.notifications = NotificationCenter(self, clock)

    def drop_typed_ahead(self) -> None:
        """Drop the keys that were typed behind one that was refused."""
        raise NotImplementedError

    async def go_to(self, feature_id: str) -> None:
        """Show a feature in its last state."""
        await self.switch_mode(feature_id)

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        """Show the chat with this id, at one of its messages or at its end."""
        raise NotImplementedError

    async def choose_model(self, name: str) -> None:
        """Chat with the local model `name`, which may be abbreviated; without a name, list the models."""
        raise NotImplementedError

    async def plan_model(self, name: str) -> None:
        """Show the plan of the local model `name`."""
        raise NotImplementedError
