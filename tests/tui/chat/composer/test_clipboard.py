"""A picture in the clipboard, through programs that stand in for the desktop's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quantizer.system.errors import UsageError
from tui.chat.composer.clipboard import MAX_CLIPBOARD_BYTES, clipboard_tool, read_picture

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the desktops with these programs are others")


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program `xclip` that prints the files `TARGETS`, `image/png` ... beside it."""
    (tmp_path / "image").mkdir()
    program = tmp_path / "xclip"
    program.write_text(f'#!/bin/sh\nfor type; do :; done\nexec cat "{tmp_path}/$type"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_tool_works_in_its_own_desktop_only(desktop: Path) -> None:
    there = {"PATH": str(desktop)}
    assert clipboard_tool(there) is None
    assert clipboard_tool({**there, "WAYLAND_DISPLAY": "wayland-0"}) is None
    tool = clipboard_tool({**there, "WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"})
    assert tool is not None
    assert tool.lists[0] == "xclip"


async def test_the_picture_is_read_in_the_first_form_that_is_known(desktop: Path) -> None:
    (desktop / "TARGETS").write_text("TIMESTAMP\ntext/html\nimage/tiff\nimage/jpeg\nimage/png\n")
    (desktop / "image/png").write_bytes(b"\x89PNG")
    assert await read_picture(found(desktop)) == b"\x89PNG"


async def test_a_clipboard_with_text_has_no_picture(desktop: Path) -> None:
    (desktop / "TARGETS").write_text("UTF8_STRING\ntext/plain\n")
    assert await read_picture(found(desktop)) is None
    (desktop / "TARGETS").unlink()  # the tool fails: nothing owns the clipboard
    assert await read_picture(found(desktop)) is None


async def test_a_picture_that_is_too_large_is_refused_while_it_is_read(desktop: Path) -> None:
    (desktop / "TARGETS").write_text("image/png\n")
    with (desktop / "image/png").open("wb") as file:
        file.truncate(MAX_CLIPBOARD_BYTES + 1)
    with pytest.raises(UsageError, match="larger than 32 MiB"):
        await read_picture(found(desktop))


def found(desktop: Path):
    tool = clipboard_tool({"PATH": str(desktop), "DISPLAY": ":0"})
    assert tool is not None
    return tool
