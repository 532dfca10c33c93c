"""How a tool call ended: the outcome and the changes on the disk that a chat stores, and its bounded output. Pure.

The text that the model reads is the content of the message that has the result; `bounded` makes it safe and short.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from app.common.terminal import printable_paste


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


MAX_CHARACTERS = 24_000  # about 8,000 tokens
_LEAST_CHARACTERS = 2_000
_PART_OF_CONTEXT = 4  # a result takes a quarter of it at most
_CHARACTERS_PER_TOKEN = 3  # of code and tables; prose has more
_HEAD_PARTS, _PARTS = 2, 3  # of the text that is kept, this much from its beginning


def characters_for(n_ctx: int) -> int:
    """Return how many characters the result of one call may have in a context of `n_ctx` tokens."""
    fitting = n_ctx // _PART_OF_CONTEXT * _CHARACTERS_PER_TOKEN
    return max(_LEAST_CHARACTERS, min(MAX_CHARACTERS, fitting))


def decoded(data: bytes) -> str:
    """Return the text of a program's output; bytes that are no UTF-8 become replacement characters."""
    return data.decode("utf-8", "replace")


def cleaned(text: str) -> str:
    """Return `text` without terminal sequences, control characters and bidi controls, its lines ended by newlines."""
    return printable_paste(text)


def bounded(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return `text` cleaned, and where it is longer than `max_characters` its head and tail around a line that says
    how much was left out. Only what is kept is cleaned: the length of the text does not matter."""
    if len(text) <= max_characters:
        return cleaned(text)
    n_head = max_characters * _HEAD_PARTS // _PARTS
    n_tail = max_characters - n_head
    head, tail = text[:n_head], text[len(text) - n_tail :]
    n_left_out = len(text) - n_head - n_tail
    return f"{cleaned(head)}\n[{n_left_out:,} characters were left out here]\n{cleaned(tail)}"
