"""What a tool is, what a server of tools must offer, and how a call ended: what a chat stores of it, and its output.

The text that the model reads is the content of the message that has the result; `bounded` makes it safe and short.
Knows no kind of server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from app.common.terminal import printable_paste
from app.protocol.chat import MediaPart, Source, Tool

if TYPE_CHECKING:
    from app.tools.server_requests import ServerRequests


class ToolOutcome(Enum):
    RUNNING = "running"  # or cut off when its process died: what it did is not known
    DONE = "done"
    FAILED = "failed"  # the tool reported an error, its server died, or the arguments are not valid
    DENIED = "denied"  # by the person, or by a rule of the chat
    CANCELLED = "cancelled"  # by the person in the middle
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one file: its absolute path, and the SHA-256 of its content before and after in the file history. An
    empty `before` is a file that did not exist, an empty `after` one that was removed. `mode` are the permission bits
    from before, -1 where there was no file. The last `n_new_folders` folders of the path were made for the file. A file
    too large for the history is not kept: the change cannot be undone."""

    path: str
    before: str
    after: str
    mode: int = -1
    n_new_folders: int = 0
    is_kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of call `call_id` of `tool` on `server`; `title` is what it did in a line ("read notes.md"). `detail`
    says how it went ("exit status 1", "+3 −1 lines"). `n_bytes` is the size of the whole output, of which the message
    may have a part. `diff` is what a write changes, as the question before it showed that, bounded. `changes` are
    undone by the file history; those of a call that `is_undone` were. `sources` are passages of documents in it."""

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
    sources: tuple[Source, ...] = ()


MAX_MEDIA = 8  # pictures and sounds of a result: as many as a model may look at once
MAX_MEDIA_BASE64 = 12 << 20  # characters of all of them
MAX_CHARACTERS = 24_000  # about 8,000 tokens
_LEAST_CHARACTERS = 2_000
_PART_OF_CONTEXT = 4  # a result takes a quarter of it at most
_CHARACTERS_PER_TOKEN = 3  # of code and tables; prose has more
_HEAD_PARTS, _PARTS = 2, 3  # of the text that is kept, this much from its beginning


def characters_for(n_ctx: int) -> int:
    """Return how many characters the result of one call may have in a context of `n_ctx` tokens."""
    fitting = n_ctx // _PART_OF_CONTEXT * _CHARACTERS_PER_TOKEN
    return max(_LEAST_CHARACTERS, min(MAX_CHARACTERS, fitting))


def media_names(media: Iterable[MediaPart]) -> list[str]:
    """Return what the text of a result calls its pictures and sounds: "picture 1", "sound 1", "picture 2"."""
    names, numbers = [], {"picture": 0, "sound": 0}
    for part in media:
        kind = "sound" if part.is_sound else "picture"
        numbers[kind] += 1
        names.append(f"{kind} {numbers[kind]}")
    return names


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


class Effect(Enum):
    """The most that a tool may do. What a server of others declares is its claim: it asks for no fewer approvals."""

    READ = "read"  # in the folders of the chat
    WRITE = "write"  # files in the folders of the chat; can be undone
    RUN = "run"  # a command with the rights of the person
    FETCH = "fetch"  # from the network
    UNKNOWN = "unknown"  # a tool of a server of others


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of a server. `definition.name` is its name for models, unique among all tools; `name` that on the server.
    `timeout_s` ends a call, 0 for no limit of its own. A server of others may change what a tool is: `fingerprint`
    changes with it, and `server_fingerprint` with any tool of its server. Built-in tools have none."""

    server: str
    name: str
    definition: Tool
    effect: Effect = Effect.UNKNOWN
    title: str = ""
    timeout_s: float = 60.0
    fingerprint: str = ""
    server_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server as /tools lists it: its tools as far as known, and why they are not ("" where all is well). `origin`
    says where it comes from: "built in", or the file that names it. `state` is "stopped", "ready", "running", "failed",
    or "absent" of one that has nothing to offer here, which no list shows; `prompts` and `resources` are the names that
    a server of others lists; `notes` are lines about what else it has."""

    name: str
    origin: str
    state: Literal["stopped", "ready", "running", "failed", "absent"]
    tools: tuple[ServerTool, ...] = ()
    problem: str = ""
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BoundCommand:
    """A command as it would run. `argv` are the arguments, the first of which is how the program was called; `program`
    is the absolute path where it was found, `target` that of the file to which the links there lead, and `folder` the
    resolved path of where it runs. The same arguments are another command elsewhere."""

    argv: tuple[str, ...]
    program: str
    target: str
    folder: str

    def is_same_place(self, other: BoundCommand) -> bool:
        """Return whether both are of one program and folder, whatever the arguments."""
        return (self.program, self.target, self.folder) == (other.program, other.target, other.folder)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a call would do, for the person who approves it; not yet safe for a terminal. `title` is one line ("write
    notes.md", "run pytest -q"). `text` is a unified diff, the command with its folder and environment, the arguments as
    indented JSON, or what a server asks for during a call: a "form", or "sampling" of the model. `command` is what runs
    where the tool runs one."""

    kind: Literal["diff", "command", "arguments", "form", "sampling"]
    title: str
    text: str
    command: BoundCommand | None = None


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far a running call is: a message, and where the server knows it `done` of `total`; or a piece of output."""

    message: str = ""
    done: float | None = None
    total: float | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a call returned: text of any length and content, still untrusted and unbounded, and how it went in a line.
    `n_bytes` is the size of the whole, if `text` is only a part of it. A call that `is_timed_out` was stopped by its
    server because of its time. `sources` are the passages of documents in the text, which the answer may cite. `media`
    are its pictures and sounds, at most MAX_MEDIA, as the server calls them; the text names each by `media_names`."""

    text: str
    is_error: bool = False
    detail: str = ""
    n_bytes: int | None = None
    is_timed_out: bool = False
    sources: tuple[Source, ...] = ()
    media: tuple[MediaPart, ...] = ()


KnownFiles: TypeAlias = dict[str, set[str]]
"""By the resolved path of a file the SHA-256 of each content of it that a chat was given, or has written itself."""


async def _record_nothing(_: FileChange) -> None: ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call may use: the folders of the chat, the first of which is where relative paths and commands begin.
    `record_change` is awaited before a file is changed, so that a kill between both loses nothing. `on_progress` never
    waits. Of a longer text than `max_characters` the model gets head and tail: a server may choose better. `requests`
    is what a server may ask for meanwhile, None where nobody answers it. `known_files` is what the chat has read and
    written so far, which tools for files add to."""

    folders: tuple[Path, ...] = ()
    on_progress: Callable[[ToolProgress], None] = lambda _: None
    record_change: Callable[[FileChange], Awaitable[None]] = _record_nothing
    max_characters: int = MAX_CHARACTERS
    requests: ServerRequests | None = None
    known_files: KnownFiles = field(default_factory=dict)


class OpenBuffers(Protocol):
    """Files as an editor has them open, which may differ from the disk. Paths are resolved."""

    async def read(self, path: Path) -> str | None:
        """Return the text of a file, its lines ended by newlines or as on the disk; None where the editor does not give
        it."""

    async def write(self, path: Path, text: str) -> bool:
        """Give a file another text, and save it; return False where the editor writes no files. Raises StorageError
        where it refuses."""


class ToolServer(Protocol):
    """A set of tools under one name. Cancelling a call stops what it does. Each method raises UserError: for a server
    that cannot be started or died, and for arguments that are not valid."""

    @property
    def name(self) -> str: ...

    def status(self) -> ServerStatus:
        """Return what is known of it; starts nothing."""

    async def tools(self) -> tuple[ServerTool, ...]:
        """Return its tools; starts the server where needed."""

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        """Return what a call would do. Changes nothing."""

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Run a call, which was approved as its preview showed it. Raises UserError where that no longer holds."""

    async def close(self) -> None:
        """Stop it and everything it started."""


class FixedServer:
    """What the `ToolServer`s of this process have in common: tools that are always there, and nothing to stop."""

    def __init__(self, name: str, tools: tuple[ServerTool, ...]) -> None:
        self.name = name
        self._tools = tools

    def status(self) -> ServerStatus:
        return ServerStatus(self.name, "built in", "ready", self._tools)

    async def tools(self) -> tuple[ServerTool, ...]:
        return self._tools

    async def close(self) -> None:
        """Nothing runs between calls."""


@runtime_checkable
class RestartableServer(Protocol):
    """A server that is a program of others: one that failed is left alone until it is restarted, or for a while."""

    async def restart(self) -> None:
        """Stop it, and forget why it failed: its next use starts it at once."""


@runtime_checkable
class LibraryServer(Protocol):
    """A server that has prompts and resources too. Methods raise UserError."""

    async def prompt(self, name: str, arguments: str) -> str:
        """Return a prompt, with arguments as the person typed them."""

    async def resource(self, uri: str) -> str | bytes:
        """Return a resource: a text, or the bytes of a file."""
