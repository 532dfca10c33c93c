"""What every screen is made with: the service, its jobs and downloads, the keeper of chats, settings and a clock."""

from __future__ import annotations

from dataclasses import dataclass

from app.settings import Settings
from tui.connection import Connection
from tui.downloads import Downloads
from tui.job_board import JobBoard
from tui.keeper import Keeper
from tui.meter import Clock
from tui.settings_book import SettingsBook

__all__ = ["Resources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Shared by all screens; whoever runs the app closes the connection and the keeper. `clock` counts seconds, `book`
    changes settings."""

    connection: Connection
    downloads: Downloads
    jobs: JobBoard
    keeper: Keeper
    settings: Settings
    book: SettingsBook
    clock: Clock
