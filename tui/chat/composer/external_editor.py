"""The user's own editor for a text: which program it is, and the file that it edits.

Owns the file and the process, and lends it the terminal of the full screen meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from quantizer.system.errors import StorageError, UsageError, UserError
from quantizer.system.files import open_private

if TYPE_CHECKING:
    from textual.app import App


_VARIABLES = ("VISUAL", "EDITOR")
_USUAL = {"win32": ("notepad",), "darwin": ("nano", "vim", "vi")}
_USUAL_ELSEWHERE = ("sensible-editor", "editor", "nano", "vim", "vi")
_REMEDY = "Set EDITOR to a program that waits until the file is closed, such as nano, vim or code --wait."


def editor_command(environment: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """Return the command of the user's editor: $VISUAL, $EDITOR, or the first usual one that is installed.

    Raises UsageError if there is none.
    """
    for variable in _VARIABLES:
        if value := environment.get(variable, "").strip():
            return _named(variable, value, environment, platform)
    usual = _USUAL.get(platform, _USUAL_ELSEWHERE)
    found = next((name for name in usual if shutil.which(name, path=environment.get("PATH"))), None)
    if found is None:
        raise UsageError(f"No editor was found: neither {' nor '.join(usual)} is installed.", _REMEDY)
    return [found]


async def edit_text(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` as edited in the user's editor, without line breaks at its end.

    Cancelling ends the editor. Raises UsageError if there is none, if it fails or if it saves something that is no
    text; StorageError if the file cannot be written.
    """
    command = editor_command(environment)
    try:
        with TemporaryDirectory(prefix="localllm-") as folder:
            path = Path(folder) / "prompt.md"
            with open_private(path, is_new=True) as file:
                file.write(f"{text}\n".encode() if text else b"")
            status = await _run([*command, str(path)], environment)
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
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise StorageError(f"The edited text cannot be read: {error.strerror}.", "Edit it again.") from error
    if "\0" in text:
        raise UsageError("The edited text is not UTF-8 text.", "Save it as UTF-8.")
    return text


def _named(variable: str, value: str, environment: Mapping[str, str], platform: str) -> list[str]:
    try:
        words = shlex.split(value, posix=platform != "win32")
    except ValueError as error:
        raise UsageError(f"{variable} is no command: {error}.", _REMEDY) from error
    command = [word.strip('"') for word in words] if platform == "win32" else words
    if not command or shutil.which(command[0], path=environment.get("PATH")) is None:
        raise UsageError(f"The editor {value}, from {variable}, was not found.", _REMEDY)
    return command


async def _run(command: list[str], environment: Mapping[str, str]) -> int:
    with _without_interrupts():
        process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process)


async def _end(process: Process) -> None:
    process.terminate()
    await process.wait()


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
