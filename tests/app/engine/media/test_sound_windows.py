"""Long sounds cut into windows."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.media import sound_windows
from app.engine.media.decode import decode_sound
from app.engine.media.sound_windows import (
    MAX_WINDOW_S,
    MIN_CUT_S,
    OVERLAP_S,
    Samples,
    SoundWindow,
    decoded_blocks,
    wav_of,
    windows_of,
)
from app.protocol.errors import RequestError
from tests.app.engine.media.files import flac_file, mp3_file, picture_file, sound_file

RATE = 1000  # samples a second, which is enough to tell loud from quiet


def speech(length_s: float, pauses: tuple[tuple[float, float], ...] = ()) -> Samples:
    """Noise, but for pauses from one second to another."""
    samples = np.random.default_rng(0).normal(0, 0.2, round(length_s * RATE)).astype(np.float32)
    for begin_s, end_s in pauses:
        samples[round(begin_s * RATE) : round(end_s * RATE)] *= 0.01
    return samples


def cut(samples: Samples, n_block: int = 4096) -> list[SoundWindow]:
    return [*windows_of((samples[begin : begin + n_block] for begin in range(0, len(samples), n_block)), RATE)]


def test_a_short_sound_is_one_window() -> None:
    (window,) = cut(speech(MAX_WINDOW_S))
    assert len(window.samples) == MAX_WINDOW_S * RATE
    assert not window.is_cut


def test_a_window_ends_in_the_longest_pause() -> None:
    first, second = cut(speech(50, ((5, 8), (18, 18.4), (24, 24.8), (27, 27.2))))
    assert len(first.samples) / RATE == pytest.approx(24.4, abs=0.05)
    assert not first.is_cut
    assert second.begin == len(first.samples)


def test_windows_overlap_where_there_is_no_pause() -> None:
    first, second, third = cut(speech(70))
    assert first.is_cut
    assert second.is_cut
    assert not third.is_cut
    assert second.begin / RATE == MAX_WINDOW_S - OVERLAP_S
    assert (first.samples[-round(OVERLAP_S * RATE) :] == second.samples[: round(OVERLAP_S * RATE)]).all()


def test_a_window_is_silent_where_nobody_speaks() -> None:
    samples = speech(10)
    assert [window.is_silent for window in cut(samples)] == [False]
    assert [window.is_silent for window in cut(samples * 1e-4)] == [True]
    assert [window.is_silent for window in cut(np.zeros(100 * RATE, np.float32))] == [True] * 5


@pytest.mark.slow
@given(
    st.floats(0.1, 120),
    st.lists(st.tuples(st.floats(0, 119), st.floats(0.05, 3)), max_size=8),
    st.integers(1, 40_000),
)
@settings(max_examples=25, deadline=None)
def test_windows_cover_the_sound_whatever_the_blocks(
    length_s: float, pauses: list[tuple[float, float]], n_block: int
) -> None:
    samples = speech(length_s, tuple((begin_s, begin_s + more_s) for begin_s, more_s in pauses))
    n_block = max(n_block, len(samples) // 100)
    windows = cut(samples, n_block)
    assert [(each.begin, len(each.samples), each.is_cut) for each in windows] == [
        (each.begin, len(each.samples), each.is_cut) for each in cut(samples)
    ]
    end = 0
    for number, window in enumerate(windows):
        assert window.begin == (end if number == 0 or not windows[number - 1].is_cut else end - OVERLAP_S * RATE)
        end = window.begin + len(window.samples)
        assert (window.samples == samples[window.begin : end]).all()
        assert len(window.samples) <= MAX_WINDOW_S * RATE
        assert len(window.samples) >= MIN_CUT_S * RATE or end == len(samples)
    assert end == len(samples)
    assert not windows[-1].is_cut


@pytest.mark.parametrize(
    "data",
    [sound_file(1.3), sound_file(1.3, 44_100, 2), flac_file(), mp3_file()],
    ids=["WAV", "resampled", "FLAC", "MP3"],
)
def test_a_file_is_decoded_in_pieces_as_it_is_at_once(data: bytes) -> None:
    pieces = np.concatenate([*decoded_blocks(io.BytesIO(data), 16_000)])
    assert (pieces == decode_sound(data, 16_000).samples).all()
    again = decode_sound(wav_of(pieces, 16_000), 16_000).samples
    assert (again == pieces).all()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "no content"),
        (sound_file(0), "has no samples"),
        (sound_file(0.01), "has 10 ms"),
        (sound_file()[:30], "damaged"),
        (picture_file(), "is a picture"),
        (b"%PDF-1.7", "a PDF document"),
        (b"\0\0\0\x20ftypM4A ", "an M4A sound"),
        (b"hello", "neither a picture nor a sound"),
        (wav_of(np.full(4000, np.nan, np.float32), 16_000), "NaN"),
    ],
)
def test_a_file_without_a_sound_is_refused(data: bytes, cause: str) -> None:
    with pytest.raises(RequestError, match=cause):
        list(decoded_blocks(io.BytesIO(data), 16_000))


def test_a_sound_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_windows, "MAX_LENGTH_S", 1)

    def blocks() -> Iterator[Samples]:
        yield from decoded_blocks(io.BytesIO(sound_file(3)), 16_000)

    with pytest.raises(RequestError, match="longer than"):
        list(blocks())
