"""The user interface of the command line: the full screen, and the chat in the terminal's scrollback.

Owns the interface between the verbs and `tui`, which nothing here may import: the caller of the command line passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings
    from app.cli.prompts import AttachedFiles
    from app.cli.tool_options import RequestedTools
    from app.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of a chat in the scrollback. What `chat` sets precedes the settings of a saved chat.

    A chat that `is_saved` continues the chat `chat_id` (None: the last one) unless it `is_new`. With a `prompt` only
    that is answered, without a dialog. A saved chat goes on with its own model, unless it `keeps_model`: that of the
    settings. `attached` are the files of the prompt, `tools` are switched on in the chat. With `wants_json` the answer
    to the prompt is one JSON object, with the calls of tools and their results.
    """

    settings: Settings
    chat: ChatSettings
    is_saved: bool = False
    chat_id: int | None = None
    is_new: bool = False
    keeps_model: bool = False
    shows_stats: bool = False
    prompt: str = ""
    attached: AttachedFiles | None = None
    tools: RequestedTools | None = None
    wants_json: bool = False


@dataclass(frozen=True, slots=True)
class UserInterface:
    """`run_app` runs the full screen with the settings and the flags among them, and returns the exit status;
    `run_chat` runs a chat in the scrollback and raises the UserError that ends it."""

    run_app: Callable[[Settings, Mapping[str, object]], int]
    run_chat: Callable[[ChatOptions], None]


def current_interface() -> UserInterface | None:
    """Return the user interface of this command line, None without one."""
    return click.get_current_context().find_object(UserInterface)
