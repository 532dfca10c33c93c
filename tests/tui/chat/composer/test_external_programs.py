"""The user's own editor: which one it is, what comes back from it, and whose terminal it is meanwhile."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from quantizer.system.errors import UsageError
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.composer.external_programs import (
    MAX_CLIPBOARD_BYTES,
    clipboard_tool,
    edit_text,
    editor_command,
    read_picture,
)


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A folder with two programs, the only ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("vi", "nano", "code", "notepad"):
        (folder / name).touch(mode=0o755)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="programs have an extension there")
@pytest.mark.parametrize(
    ("chosen", "platform", "command"),
    [
        ({"VISUAL": "code --wait", "EDITOR": "vi"}, "linux", ["code", "--wait"]),
        ({"VISUAL": " ", "EDITOR": "vi"}, "linux", ["vi"]),
        ({}, "linux", ["nano"]),
        ({}, "darwin", ["nano"]),
        ({}, "win32", ["notepad"]),
        ({"EDITOR": '"code" --wait'}, "win32", ["code", "--wait"]),
    ],
)
def test_the_editor_is_the_users_or_the_usual_one(bin_dir, chosen, platform, command) -> None:
    assert editor_command({**chosen, "PATH": str(bin_dir)}, platform) == command


@pytest.mark.parametrize(
    ("chosen", "cause"),
    [
        ({"EDITOR": "emacs -nw"}, "The editor emacs -nw, from EDITOR, was not found."),
        ({"VISUAL": "vi 'x"}, "VISUAL is not a command: No closing quotation."),
    ],
)
def test_an_editor_that_cannot_be_run_is_named(bin_dir, chosen, cause) -> None:
    with pytest.raises(UsageError) as raised:
        editor_command({**chosen, "PATH": str(bin_dir)}, "linux")
    assert raised.value.cause == cause
    assert "Set EDITOR" in raised.value.remedy


def test_without_any_editor_the_usual_ones_are_named(tmp_path) -> None:
    with pytest.raises(UsageError, match="neither nano nor vim nor vi is installed"):
        editor_command({"PATH": str(tmp_path)}, "darwin")


def environment_with(tmp_path: Path, program: str) -> dict[str, str]:
    """Return an environment whose editor is a Python program; sys.argv[1] is the file."""
    script = tmp_path / "an editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n{program}\n")
    return {**os.environ, "VISUAL": shlex.join([sys.executable, str(script)])}


async def test_the_text_comes_back_as_it_was_saved(tmp_path) -> None:
    environment = environment_with(tmp_path, "path.write_text(path.read_text().upper() + 'Grün.\\n\\n')")
    assert await edit_text("one\ntwo", environment) == "ONE\nTWO\nGrün."


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("sys.exit(3)", "ended with status 3: its text is not used"),
        ("path.write_bytes(bytes([255, 0]))", "The edited text is not UTF-8 text"),
        ("path.unlink()", "The edited text cannot be read: No such file"),
    ],
)
async def test_an_editor_that_fails_is_reported(tmp_path, program, fault) -> None:
    with pytest.raises(Exception, match=fault):
        await edit_text("draft", environment_with(tmp_path, program))


async def test_cancelling_ends_the_editor_and_removes_its_file(tmp_path) -> None:
    seen = tmp_path / "seen"
    environment = environment_with(
        tmp_path, f"pathlib.Path({str(seen)!r}).write_text(str(path))\nimport time\ntime.sleep(600)"
    )
    editing = asyncio.create_task(edit_text("draft", environment))
    edited = await asyncio.to_thread(_read_once_there, seen)
    assert edited.exists()
    editing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await editing
    assert not edited.exists()


def _read_once_there(file: Path) -> Path:
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)
    return Path(file.read_text())


async def test_a_screen_that_cannot_lend_its_terminal_says_so_and_keeps_the_draft(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("draft")
        await user.presses("alt+e")
        await user.sees("cannot lend this terminal")
        assert user.app.screen.query_one("PromptInput").text == "draft"


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
