"""The picture in the clipboard, by a tool of the desktop where there is one.

Owns which tools are asked and the limits of what they give. A terminal gives an app only text of the clipboard: the
one protocol for more (kitty's OSC 5522) is not in Textual.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from quantizer.system.errors import UsageError

MAX_CLIPBOARD_BYTES = 32 << 20
_PATIENCE_S = 5.0
_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


@dataclass(frozen=True, slots=True)
class ClipboardTool:
    """A program that prints the types of what is in the clipboard, and with `prints` and a type its bytes. It works
    where the environment has `variable`."""

    variable: str
    lists: tuple[str, ...]
    prints: tuple[str, ...]


_TOOLS = (
    ClipboardTool("WAYLAND_DISPLAY", ("wl-paste", "--list-types"), ("wl-paste", "--no-newline", "--type")),
    ClipboardTool(
        "DISPLAY",
        ("xclip", "-selection", "clipboard", "-o", "-t", "TARGETS"),
        ("xclip", "-selection", "clipboard", "-o", "-t"),
    ),
)


def clipboard_tool(environment: Mapping[str, str] = os.environ) -> ClipboardTool | None:
    """Return the tool of this desktop, None if none is installed."""
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
    """Return what a command prints; nothing if it fails or hangs."""
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    except OSError:
        return b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            printed = await _read(process)
            return printed if await process.wait() == 0 else b""
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    printed = bytearray()
    while data := await process.stdout.read(1 << 16):
        printed += data
        if len(printed) > MAX_CLIPBOARD_BYTES:
            raise UsageError(
                f"The picture in the clipboard is larger than {MAX_CLIPBOARD_BYTES >> 20} MiB.",
                "Save it to a file and attach a smaller copy.",
            )
    return bytes(printed)
