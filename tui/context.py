"""The objects that every screen shares."""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.settings import Settings
from tui.chat.answer_stream import Clock
from tui.chat.repository import ChatRepository
from tui.connection.connection import ServiceConnection
from tui.jobs.monitor import JobMonitor
from tui.models.downloads import Downloads
from tui.settings.controller import SettingsController

__all__ = ["AppContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Connection, downloads, jobs, repository, settings and clock. The creator of the app closes the connection and the
    repository. `clock` counts seconds, `settings_controller` changes settings."""

    connection: ServiceConnection
    downloads: Downloads
    jobs: JobMonitor
    repository: ChatRepository
    settings: Settings
    settings_controller: SettingsController
    clock: Clock
