"""Other programs that help with a question: the user's editor, which gets the terminal meanwhile, and the tool of the
desktop that reads a picture from the clipboard.

A terminal gives an app only text of the clipboard: the one protocol for more (kitty's OSC 5522) is not in Textual. No
widgets: the chat in the scrollback edits in $EDITOR too.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.system.errors import StorageError, UsageError, UserError
from quantizer.system.files import open_private, read_regular

if TYPE_CHECKING:
    from textual.app import App


_VARIABLES = ("VISUAL", "EDITOR")
_USUAL = {"win32": ("notepad",), "darwin": ("nano", "vim", "vi")}
_USUAL_ELSEWHERE = ("sensible-editor", "editor", "nano", "vim", "vi")
_REMEDY = "Set EDITOR to a program that waits until the file is closed, such as nano, vim or code --wait."

MAX_CLIPBOARD_BYTES = 32 << 20
_PATIENCE_S = 5.0
_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


def editor_command(environment: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """Return the command of the user's editor: $VISUAL, $EDITOR, or the first usual one that is installed. Raises
    UsageError if there is none."""
    for variable in _VARIABLES:
        if value := environment.get(variable, "").strip():
            try:
                words = shlex.split(value, posix=platform != "win32")
            except ValueError as error:
                raise UsageError(f"{variable} is not a command: {error}.", _REMEDY) from error
            command = [word.strip('"') for word in words] if platform == "win32" else words
            if not command or shutil.which(command[0], path=environment.get("PATH")) is None:
                raise UsageError(f"The editor {value}, from {variable}, was not found.", _REMEDY)
            return command
    usual = _USUAL.get(platform, _USUAL_ELSEWHERE)
    found = next((name for name in usual if shutil.which(name, path=environment.get("PATH"))), None)
    if found is None:
        raise UsageError(f"No editor was found: neither {' nor '.join(usual)} is installed.", _REMEDY)
    return [found]


async def edit_text(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` as edited in the user's editor, without line breaks at its end. Cancelling ends the editor. Raises
    UsageError if there is none, if it fails or if it saves something that is not text; StorageError if the file cannot
    be written."""
    from quantizer.system.temporary_folder import temporary_folder

    command = editor_command(environment)
    try:
        with temporary_folder("edit") as folder:
            path = folder / "prompt.md"
            with open_private(path, is_new=True) as file:
                file.write(f"{text}\n".encode() if text else b"")
            with _without_interrupts():
                process = await asyncio.create_subprocess_exec(*command, str(path), env=dict(environment))
                try:
                    status = await process.wait()
                finally:
                    if process.returncode is None:  # cancelled
                        process.terminate()
                        await process.wait()
            if status:
                ending = f"ended with status {status}" if status > 0 else f"was stopped by signal {-status}"
                raise UsageError(f"{Path(command[0]).name} {ending}: its text is not used.", _REMEDY)
            return _saved_text(path).rstrip("\n")
    except OSError as error:
        raise StorageError(f"{Path(command[0]).name} cannot be started: {error.strerror}.", _REMEDY) from error


async def edit_text_outside(app: App[None], text: str) -> str:
    """Return `text` as edited, see `edit_text`, while `app` works on without the terminal."""
    from textual.app import SuspendNotSupported

    edited: str | UserError
    try:
        with app.batch_update(), app.suspend():  # no painting; and an error in there would not give the terminal back
            try:
                edited = await edit_text(text)
            except UserError as error:
                edited = error
    except SuspendNotSupported as error:
        raise UsageError("The app cannot lend this terminal to an editor.", "Edit the text here.") from error
    app.refresh(layout=True)
    if isinstance(edited, UserError):
        raise edited
    return edited


def _saved_text(path: Path) -> str:
    try:
        text = read_regular(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise StorageError(f"The edited text cannot be read: {error.strerror}.", "Edit it again.") from error
    if "\0" in text:
        raise UsageError("The edited text is not UTF-8 text.", "Save it as UTF-8.")
    return text


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Leave Ctrl+C to the editor, which shares the terminal; only the main thread can, and in others nobody gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, lambda *_: None)  # not ignored: the editor would inherit that
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@dataclass(frozen=True, slots=True)
class ClipboardTool:
    """A program that prints the types of what is in the clipboard, and with `prints` and a type its bytes. It works
    where the environment has `variable`."""

    variable: str
    lists: tuple[str, ...]
    prints: tuple[str, ...]


_XCLIP = ("xclip", "-selection", "clipboard", "-o", "-t")
_TOOLS = (
    ClipboardTool("WAYLAND_DISPLAY", ("wl-paste", "--list-types"), ("wl-paste", "--no-newline", "--type")),
    ClipboardTool("DISPLAY", (*_XCLIP, "TARGETS"), _XCLIP),
)


def clipboard_tool(environment: Mapping[str, str] = os.environ) -> ClipboardTool | None:
    for tool in _TOOLS:
        if environment.get(tool.variable) and shutil.which(tool.lists[0], path=environment.get("PATH")):
            return tool
    return None


async def read_picture(tool: ClipboardTool) -> bytes | None:
    """Return the picture in the clipboard, None if there is none. Raises UsageError for one that is too large."""
    offered = (await _output(tool.lists)).decode("utf-8", "replace").split()
    wanted = next((type_ for type_ in _TYPES if type_ in offered), None)
    return await _output((*tool.prints, wanted)) or None if wanted else None


async def _output(command: Sequence[str]) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    except OSError:
        return b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            assert process.stdout is not None
            printed = bytearray()
            while data := await process.stdout.read(1 << 16):
                printed += data
                if len(printed) > MAX_CLIPBOARD_BYTES:
                    cause = f"The picture in the clipboard is larger than {MAX_CLIPBOARD_BYTES >> 20} MiB."
                    raise UsageError(cause, "Save it to a file and attach a smaller copy.")
            return bytes(printed) if await process.wait() == 0 else b""
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
