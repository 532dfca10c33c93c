"""What every screen is made with: the service, what is being fetched from the hub, the keeper of chats, the settings
and a clock."""

from __future__ import annotations

from dataclasses import dataclass

from app.settings import Settings
from tui.connection import Connection
from tui.downloads import Downloads
from tui.keeper import Keeper
from tui.meter import Clock

__all__ = ["Resources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Shared by all screens; whoever runs the app closes the connection and the keeper. `clock` counts seconds."""

    connection: Connection
    downloads: Downloads
    keeper: Keeper
    settings: Settings
    clock: Clock
