"""The process that cuts a sound into windows."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from app.engine.media.decode import decode_sound
from app.protocol.errors import RequestError
from app.service.generation.sound_reader import SAMPLE_RATE, windows_of
from tests.app.engine.media.files import sound_file

pytestmark = pytest.mark.slow


async def test_the_windows_of_a_file_come_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(sound_file(70, 8000))
    with path.open("rb") as file:
        windows = [window async for window in windows_of(file)]
    assert [(window.begin_s, window.end_s) for window in windows] == [(0, 30), (28, 58), (56, 70)]
    assert {round(window.length_s, 2) for window in windows} == {70}
    assert [window.is_cut for window in windows] == [True, True, False]
    decoded = decode_sound(b64decode(windows[2].base64), SAMPLE_RATE).samples
    assert len(decoded) == 14 * SAMPLE_RATE


async def test_a_file_that_is_no_sound_is_refused_as_in_a_chat(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"%PDF-1.7")
    with path.open("rb") as file, pytest.raises(RequestError, match="a PDF document"):
        _ = [window async for window in windows_of(file)]


async def test_the_process_ends_with_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(sound_file(600, 8000))
    before = set(psutil.Process().children())
    with path.open("rb") as file:
        async with aclosing(windows_of(file)) as windows:
            await anext(windows)
            assert set(psutil.Process().children()) - before
        await asyncio.sleep(0)
    assert not [child for child in set(psutil.Process().children()) - before if child.is_running()]
