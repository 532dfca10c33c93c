"""The user interface of the command line: the full screen, and the chat in the terminal's scrollback.

Owns the interface between the verbs and `tui`, which nothing here may import: the caller of the command line passes it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings
    from app.cli.tool_options import RequestedTools
    from app.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of a chat in the scrollback. What `chat` sets precedes the settings of a saved chat.

    A chat that `is_saved` continues the chat `chat_id` (None: the last one) unless it `is_new`. With a `prompt` only
    that is answered, without a dialog. A saved chat goes on with its own model, unless it `keeps_model`: that of the
    settings. `tools` are switched on in the chat.
    """

    settings: Settings
    chat: ChatSettings
    is_saved: bool = False
    chat_id: int | None = None
    is_new: bool = False
    keeps_model: bool = False
    shows_stats: bool = False
    prompt: str = ""
    tools: RequestedTools | None = None


@dataclass(frozen=True, slots=True)
class UserInterface:
    """`run_app` runs the full screen with the settings and the flags among them, and returns the exit status;
    `run_chat` runs a chat in the scrollback and raises the UserError that ends it."""

    run_app: Callable[[Settings, Mapping[str, object]], int]
    run_chat: Callable[[ChatOptions], None]


def current_interface() -> UserInterface | None:
    """Return the user interface of this command line, None without one."""
    return click.get_current_context().find_object(UserInterface)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit cleanly on SIGTERM and SIGHUP, so that messages are saved, and tools and the service stop."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [signal.SIGTERM] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGHUP]
    former = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
