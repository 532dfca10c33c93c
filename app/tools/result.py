"""How a tool call ended, as a chat stores it: the outcome, and what it changed on the disk. Pure.

The text that the model reads is the content of the message that has the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ToolOutcome(Enum):
    """How a call ended."""

    RUNNING = "running"  # or cut off when its process died: what it did is not known
    DONE = "done"
    FAILED = "failed"  # the tool reported an error, its server died, or the arguments are not valid
    DENIED = "denied"  # by the person, or by a rule of the chat
    CANCELLED = "cancelled"  # by the person in the middle
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one file: its absolute path, and the SHA-256 of its content before and after in the file history.

    An empty `before` is a file that did not exist, an empty `after` one that was removed. `mode` are the permission
    bits from before, -1 where there was no file. The last `n_new_folders` folders of the path were made for the file.
    A file too large for the history is not kept: the change cannot be undone.
    """

    path: str
    before: str
    after: str
    mode: int = -1
    n_new_folders: int = 0
    is_kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of call `call_id` of `tool` on `server`; `title` is what it did in a line ("read notes.md").

    `detail` says how it went ("exit status 1", "+3 −1 lines"). `n_bytes` is the size of the whole output, of which the
    message may have a part. `diff` is what a write changes, as the question before it showed that, bounded. `changes`
    are undone by the file history; those of a call that `is_undone` were.
    """

    call_id: str
    tool: str
    server: str = ""
    title: str = ""
    outcome: ToolOutcome = ToolOutcome.RUNNING
    detail: str = ""
    n_bytes: int = 0
    duration_s: float = 0.0
    diff: str = ""
    changes: tuple[FileChange, ...] = ()
    is_undone: bool = False
