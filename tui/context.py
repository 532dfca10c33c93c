"""What every screen is made with: the service, its jobs and downloads, the keeper of chats, settings and a clock."""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.settings import Settings
from tui.chat.answer_stream import Clock
from tui.chat.repository import ChatRepository
from tui.connection import ServiceConnection
from tui.jobs.monitor import JobMonitor
from tui.models.downloads import Downloads
from tui.settings.controller import SettingsController

__all__ = ["AppContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Shared by all screens; whoever runs the app closes the connection and the keeper. `clock` counts seconds, `book`
    changes settings."""

    connection: ServiceConnection
    downloads: Downloads
    jobs: JobMonitor
    keeper: ChatRepository
    settings: Settings
    book: SettingsController
    clock: Clock
