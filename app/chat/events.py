"""What happens in a chat while a question is answered, as values: whoever shows a chat draws them, in order.

A renderer may ignore any of them: what they say is in the chat's `Conversation` before they are yielded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from app.chat.conversation import Message
from app.protocol.chat import Completed, PromptProgress
from app.tools.approval import ApprovalQuestion
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.tools.server_requests import Form


@dataclass(frozen=True, slots=True)
class Added:
    """A question or a whole summary was stored, and ends the branch."""

    message: Message


@dataclass(frozen=True, slots=True)
class Reading:
    """The model reads the chat; `message` will be its answer. First without, then again and again with `progress`."""

    message: Message
    progress: PromptProgress | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """`text` and `reasoning` were appended to `message`, an answer or a summary; both are safe for a terminal. New
    parts of calls are in `message.calls` only."""

    message: Message
    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Repeating:
    """The answer `message` repeats itself; it goes on until the person stops it. At most once an answer."""

    message: Message


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer ended as the model wanted, or at its limit of tokens."""

    message: Message
    cost: Completed


@dataclass(frozen=True, slots=True)
class Failed:
    """`error` ended an answer, whose text so far is kept, or kept a message from being stored."""

    error: UserError


@dataclass(frozen=True, slots=True)
class Calling:
    """A call is stored as `message` and begins, or it has more to show: its title, changed files, progress."""

    message: Message


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A call waits for the person; `ChatState.approvals` takes the answer."""

    question: ApprovalQuestion


@dataclass(frozen=True, slots=True)
class FormNeeded:
    """The person agreed that a server asks them; `ChatState.approvals` takes what they fill in."""

    form: Form


@dataclass(frozen=True, slots=True)
class Result:
    """A call ended, however it did."""

    message: Message


@dataclass(frozen=True, slots=True)
class Paused:
    """The model called tools so often that the person decides whether it goes on."""

    error: UserError


@dataclass(frozen=True, slots=True)
class Summarizing:
    """A part of a summary is begun, of which `message` holds the text."""

    message: Message


@dataclass(frozen=True, slots=True)
class Note:
    """A line about the chat, which is no message."""

    text: str


@dataclass(frozen=True, slots=True)
class Changed:
    """The branch was changed by a command, or what ran was stopped."""


ChatEvent: TypeAlias = (
    Added
    | Reading
    | Written
    | Repeating
    | Finished
    | Failed
    | Calling
    | ApprovalNeeded
    | FormNeeded
    | Result
    | Paused
    | Summarizing
    | Note
    | Changed
)

Events: TypeAlias = AsyncGenerator[ChatEvent, None]
"""Closing one stops what it yields the events of; `contextlib.aclosing` does it at the end of a loop."""
