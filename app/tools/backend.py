"""What a chat needs of tools: those it may offer, running a call, and taking back what calls changed.

`app.tools.runner` is the real one; `app.tools.lazy` makes it when it is first needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from app.protocol.chat import MediaPart, ToolCall
from app.tools.approval import ApprovalRule, Approver, ToolSettings
from app.tools.tool import (
    MAX_CHARACTERS,
    FileChange,
    KnownFiles,
    ServerStatus,
    ServerTool,
    ToolProgress,
    ToolResult,
)

if TYPE_CHECKING:
    from app.tools.server_requests import RequestHelper


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """The end of a call: the text for the model, bounded and printable, the result, and a rule that the chat gains; the
    `request_rules` are about what the server of the call asked for meanwhile. `media` are pictures and sounds of the
    result as its server sent them: untrusted."""

    text: str
    result: ToolResult
    rule: ApprovalRule | None = None
    request_rules: tuple[ApprovalRule, ...] = ()
    media: tuple[MediaPart, ...] = ()


async def _ignore_result(_: ToolResult) -> None: ...


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that a model made, whose tool and arguments may be anything; the settings of its chat, and who is asked.
    `on_update` is awaited with the result so far before anything changes: with its title before the question, and with
    each file change before it is made. `on_progress` never waits. The text of the end has at most `max_characters`
    (`app.tools.tool.characters_for` knows how many a context has room for). `helper` answers what a server asks for
    during the call; without one it gets nothing. `known_files` is what the chat has read and written so far."""

    call: ToolCall
    settings: ToolSettings
    approver: Approver
    on_progress: Callable[[ToolProgress], None] = lambda _: None
    on_update: Callable[[ToolResult], Awaitable[None]] = _ignore_result
    max_characters: int = MAX_CHARACTERS
    helper: RequestHelper | None = None
    known_files: KnownFiles = field(default_factory=dict)


class ToolBackend(Protocol):
    """All tools of one window. Methods raise UserError where said, never for what a tool does."""

    async def servers(self, *, start: bool = False) -> tuple[ServerStatus, ...]:
        """Return all servers; with `start` those that are switched off too are asked for their tools."""

    async def offered(self, settings: ToolSettings) -> tuple[ServerTool, ...]:
        """Return the tools that are switched on. A server that does not start offers none; `servers` says why."""

    async def run(self, request: CallRequest) -> FinishedCall:
        """Run a call: check its arguments, ask where the rules do not decide, run it, bound its output. Cancelling this
        stops the call; the caller then stores it as cancelled."""

    async def prompt(self, server: str, name: str, arguments: str) -> str:
        """Return a prompt of a server of others, with the text of its arguments (`read_prompt_arguments`); untrusted.
        Raises UserError."""

    async def resource(self, server: str, uri: str) -> str | bytes:
        """Return a resource of a server of others: a text, or the bytes of a file; untrusted. Raises UserError."""

    async def undo(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        """Restore files as they were before `changes`, the last one first, and return what that changed, which can be
        undone too. Changes that never came to pass, or are undone already, are left out. Raises StorageError, having
        changed nothing, for a file that was changed since or whose content is not kept."""

    async def close(self) -> None:
        """Stop all servers and what they started."""
