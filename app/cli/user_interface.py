"""What a person at a terminal can be shown: the full screen, or a conversation in the scrollback.

Owns the seam between the verbs and who shows it. `tui` is behind it, which nothing here may import: whoever starts the
command line hands it over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings
    from app.settings.settings import Settings

__all__ = ["ChatOptions", "UserInterface", "current_interface"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """A conversation that was asked for. `chat` goes before what a kept chat is answered by, as far as it says
    anything.

    One that `is_kept` goes on with the chat `chat_id` (None: the one in which something was said last) unless it
    `is_new`. With a `question` that alone is asked, and nobody is at the terminal.
    """

    settings: Settings
    chat: ChatSettings
    is_kept: bool = False
    chat_id: int | None = None
    is_new: bool = False
    shows_stats: bool = False
    question: str = ""


@dataclass(frozen=True, slots=True)
class UserInterface:
    """`show_app` runs the full screen with settings and the flags among them, and returns the exit status; `talk` holds
    a conversation and raises the UserError that ends it."""

    show_app: Callable[[Settings, Mapping[str, object]], int]
    talk: Callable[[ChatOptions], None]


def current_interface() -> UserInterface | None:
    """Return what this command line was started with: nothing where no person did."""
    return click.get_current_context().find_object(UserInterface)
