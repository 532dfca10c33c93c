"""Damaged, truncated and lying files: none ends more than the child that decodes it, and each gets a typed answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from app.common.media_formats import MediaKind, format_of
from app.engine.media.decoder_process import DecoderProcess
from app.protocol.errors import RequestError
from tests.app.engine.media.files import flac_file, mp3_file, picture_file, sound_file

pytestmark = pytest.mark.slow

N_FILES = 400
FILES: tuple[bytes, ...] = (
    *(picture_file(64, 48, kind=kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")),
    *(sound_file(), mp3_file(), flac_file()),
)
Damage = Callable[[np.random.Generator, bytes], bytes]


def cut_off(random: np.random.Generator, data: bytes) -> bytes:
    return data[: random.integers(len(data))]


def overwrite(random: np.random.Generator, data: bytes) -> bytes:
    changed = np.frombuffer(data, np.uint8).copy()
    places = random.integers(0, len(data), random.integers(1, 20))
    changed[places] = random.integers(0, 256, len(places))
    return changed.tobytes()


def lie(random: np.random.Generator, data: bytes) -> bytes:
    """Set four bytes near the begin, where sizes are."""
    place = int(random.integers(4, 64))
    return data[:place] + random.choice([b"\xff\xff\xff\x7f", b"\xff" * 4, bytes(4)]) + data[place + 4 :]


def leave_out(random: np.random.Generator, data: bytes) -> bytes:
    begin, end = sorted(random.integers(0, len(data), 2))
    return data[:begin] + data[end:]


def put_together(random: np.random.Generator, data: bytes) -> bytes:
    """The begin of one file and the end of another: a polyglot is what its first bytes say."""
    other = FILES[random.integers(len(FILES))]
    return data[: random.integers(1, len(data))] + other[random.integers(len(other)) :]


DAMAGES: tuple[Damage, ...] = (cut_off, overwrite, lie, leave_out, put_together)


def damaged(seed: int) -> bytes:
    random = np.random.default_rng(seed)
    return DAMAGES[seed % len(DAMAGES)](random, FILES[random.integers(len(FILES))])


def answer(decoder: DecoderProcess, data: bytes) -> str:
    """What becomes of a file; anything but a result or a RequestError is raised."""
    try:
        if format_of(data).kind is MediaKind.SOUND:
            return f"a sound of {min(1, len(decoder.sound(data, 16_000).samples))}"
        return f"a picture of {min(1, decoder.picture(data).width)}"
    except RequestError as error:
        return "refused" if error.remedy and str(error).isprintable() else "refused badly"


def test_whole_files_are_decoded() -> None:
    decoder = DecoderProcess()
    assert [answer(decoder, data) for data in FILES] == ["a picture of 1"] * 6 + ["a sound of 1"] * 3
    decoder.close()


def test_damaged_files_are_refused_or_decoded() -> None:
    decoder = DecoderProcess()
    answers = Counter(answer(decoder, damaged(seed)) for seed in range(N_FILES))
    assert answers.total() == N_FILES
    assert answers["refused"] > N_FILES // 4
    assert decoder.picture(FILES[0]).width == 64
    decoder.close()
