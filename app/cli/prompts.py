"""A chat from the command line: its prompt and attached files, and the interface that runs it at a terminal.

Nothing here may import `tui`: the caller of the command line passes the `UserInterface`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from app.common.terminal import printable
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.chat.conversation import Attachment, ChatSettings
    from app.chat.tool_switches import RequestedTools
    from app.protocol.errors import UnfitError
    from app.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of a chat at a terminal. What `chat` sets precedes the settings of a saved chat. A chat that
    `is_saved` continues the chat `chat_id` (None: the last one) unless it `is_new`. In the scrollback a `prompt` is
    answered alone, without a dialog. A saved chat goes on with its own model, unless it `keeps_model`: that of the
    settings. `tools` are switched on in the chat."""

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
    """`run_app` runs the full screen with the settings, the flags among them and the options of its first chat, and
    returns the exit status; `run_chat` runs a chat in the scrollback and raises the UserError that ends it."""

    run_app: Callable[[Settings, Mapping[str, object], ChatOptions | None], int]
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


def confirm_load(error: UnfitError) -> bool:
    """Print why a model does not fit and ask whether to load it anyway; Ctrl-C means no."""
    click.echo(printable(str(error)), err=True)
    try:
        return click.confirm("Load it anyway?", err=True)
    except click.Abort:
        return False


_FENCE = '"""'


def piped_text() -> str:
    """Return all of stdin when it is not a terminal. Raises UsageError when it is not UTF-8."""
    return _text(_piped())


def piped_input() -> str | bytes:
    """Return all of stdin when it is not a terminal: a text, or the bytes of a picture, a sound or a PDF. Raises
    UsageError for anything else."""
    from app.chat.attachments.kinds import MAX_FILE_BYTES, Form, kind_of

    data = _piped(MAX_FILE_BYTES + 1)
    return _text(data) if kind_of(data, "The piped file").form is Form.TEXT else data


def _piped(max_bytes: int | None = None) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    if max_bytes is None:
        return sys.stdin.buffer.read()
    from quantizer.system.files import read_at_most  # with its threads 10 ms, which `localllm --help` must not wait for

    return read_at_most(sys.stdin.buffer, max_bytes)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cause = f"The piped text is not UTF-8: {error.reason} at byte {error.start}."
        raise UsageError(cause, "Convert it.") from error


def combined(prompt: str | None, piped: str) -> str:
    """Return the prompt followed by the piped text; empty without both. Raises UsageError for an argument that was not
    text in the terminal's encoding."""
    question = "\n\n".join(part for part in (prompt or "", piped.strip("\r\n")) if part.strip())
    if any("\ud800" <= character <= "\udfff" for character in question):
        raise UsageError("The prompt is not text in this terminal's encoding.", "Pipe it in as UTF-8.")
    return question


def multiline(first: str, read_line: Callable[[], str]) -> str:
    """Return the message that begins with the line `first`; after an opening \"\"\" it extends to the closing one."""
    if not first.startswith(_FENCE):
        return first
    lines = [first.removeprefix(_FENCE)]
    while not lines[-1].rstrip().endswith(_FENCE):
        lines.append(read_line())
    lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
    return "\n".join(lines).strip("\n")


@dataclass(frozen=True, slots=True)
class AttachedFiles:
    """Attachments, and the contents of their pictures and sounds by SHA-256."""

    attachments: tuple[Attachment, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)


def read_attached(names: Sequence[str], piped: bytes = b"", *, is_searched: bool = False) -> AttachedFiles:
    """Read the files `names`, which may choose pages (paper.pdf#3-5), and a piped one; of texts that are searched
    passages are sent. Raises StorageError and UsageError for what cannot be attached."""
    if not names and not piped:
        return AttachedFiles()
    from app.chat.attachments.parsing import ALL_PAGES, split_page_choice
    from app.chat.attachments.reader import read_data, read_file

    read = []
    for name in names:
        # a file may have a number sign in its name
        file_name, pages = (name, ALL_PAGES) if Path(name).exists() else split_page_choice(name)
        read.append(read_file(Path(file_name), Path(file_name).name, pages))
    read += [read_data(piped, "piped file")] if piped else []
    contents = {sha256: content for each in read for sha256, content in each.contents.items()}
    attachments = (replace(each.attachment, is_searched=is_searched and bool(each.attachment.content)) for each in read)
    return AttachedFiles(tuple(attachments), contents)
