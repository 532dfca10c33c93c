from __future__ import annotations

import io
import wave

import pytest

from app.common.wav import wav_header

SAMPLES = bytes(range(100))


def test_the_header_is_that_of_the_wave_module() -> None:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(SAMPLES)
    assert wav_header(24_000, len(SAMPLES)) + SAMPLES == written.getvalue()


def test_samples_of_unknown_length_are_read_to_their_end() -> None:
    with wave.open(io.BytesIO(wav_header(24_000, None) + SAMPLES)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert file.readframes(1000) == SAMPLES


def test_more_than_a_wav_file_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="WAV file"):
        wav_header(24_000, 1 << 32)
