"""A long sound in windows that a model takes at once, cut where nobody speaks; a child process (as `__main__`).

The file on stdin is decoded piece by piece, so that an hour takes no more memory than a minute. stdout gets a line of
JSON and a WAV file for each window, as fast as they are read; see `app.service.generation.sound_reader`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from app.common.extras import AUDIO
from app.common.media_formats import MediaFormat, MediaKind, format_of
from app.engine.media.decode import check_finite, check_n_samples, declared_s
from app.protocol.errors import RequestError
from quantizer.system.errors import ErrorInfo, UserError
from quantizer.system.memory_limit import limit_growth

MAX_WINDOW_S = 30.0  # what Whisper's encoder, and so most of libmtmd's, takes at once (tools/mtmd/mtmd-audio.cpp)
MIN_CUT_S = 15.0  # from its begin on a window may end: in pieces of some seconds a model misses the context
MIN_REST_S = 1.0  # behind a cut
OVERLAP_S = 2.0  # of windows between which somebody speaks: three to ten words
MAX_LENGTH_S = 24 * 60 * 60
MAX_MEMORY_BYTES = 256 << 20
SILENCE = 1e-3  # of full scale: -60 dB, below the noise of a microphone
_PAUSE_S = 0.3
_PAUSE_LEVEL = 0.03  # of the loud parts of a window: -30 dB
_FRAME_S = 0.02
_BLOCK_FRAMES = 16_384
_BEGIN_BYTES = 1 << 20  # of a file, by which its length is told

Samples = NDArray[np.float32]  # of one channel, shape (n_samples,)


@dataclass(frozen=True, slots=True, eq=False)
class SoundWindow:
    """A part of a sound from `begin` on, a number of samples. Where `is_cut` somebody speaks at its end, and the next
    window begins OVERLAP_S before that. Nobody speaks in one that `is_silent`."""

    samples: Samples
    begin: int
    is_cut: bool

    @property
    def is_silent(self) -> bool:
        return bool(np.abs(self.samples).max(initial=0.0) < SILENCE)


def windows_of(blocks: Iterable[Samples], sample_rate: int) -> Iterator[SoundWindow]:
    """Yield the windows of a sound that comes in `blocks`: MAX_WINDOW_S at most, together all of it."""
    held, begin = np.empty(0, np.float32), 0
    longest, rest = round(MAX_WINDOW_S * sample_rate), round(MIN_REST_S * sample_rate)

    def next_window(n_usable: int) -> SoundWindow:
        nonlocal held, begin
        cut, is_pause = find_cut(held[:n_usable], sample_rate)
        window = SoundWindow(held[:cut], begin, not is_pause)
        n_passed = cut if is_pause else cut - round(OVERLAP_S * sample_rate)
        held, begin = held[n_passed:], begin + n_passed
        return window

    for block in blocks:
        held = np.concatenate((held, block))
        while len(held) >= longest + rest:
            yield next_window(longest)
    if len(held) > longest:
        yield next_window(len(held) - rest)
    if len(held):
        yield SoundWindow(held, begin, is_cut=False)


def find_cut(samples: Samples, sample_rate: int) -> tuple[int, bool]:
    """Return where a window that begins with `samples` ends, and whether that is in a pause: the middle of the longest
    one after MIN_CUT_S, the last of several; without one all of them."""
    frame = round(_FRAME_S * sample_rate)
    n_frames = len(samples) // frame
    levels = np.sqrt(np.mean(np.square(samples[: n_frames * frame].reshape(n_frames, frame)), axis=1))
    is_quiet = levels <= max(SILENCE, _PAUSE_LEVEL * float(np.percentile(levels, 95)))
    is_quiet[: round(MIN_CUT_S / _FRAME_S)] = False
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_quiet.view(np.int8), [0]))))
    begins, ends = edges[::2], edges[1::2]
    if len(begins) == 0 or (ends - begins).max() < _PAUSE_S / _FRAME_S:
        return len(samples), False
    longest = len(begins) - 1 - int(np.argmax((ends - begins)[::-1]))
    return int(begins[longest] + ends[longest]) // 2 * frame, True


def decoded_blocks(file: BinaryIO, sample_rate: int) -> Iterator[Samples]:
    """Yield the samples of a sound as one channel at `sample_rate`, piece by piece. Raises RequestError for a file that
    is no sound, damaged, empty, shorter than MIN_SOUND_S or longer than MAX_LENGTH_S."""
    if not AUDIO.is_installed:
        raise AUDIO.missing
    import miniaudio

    class Source(miniaudio.StreamableSource):  # type: ignore[misc]  # it has no types
        def read(self, num_bytes: int) -> bytes:
            return file.read(num_bytes)

        def seek(self, offset: int, origin: Any) -> bool:
            file.seek(offset, os.SEEK_SET if origin == miniaudio.SeekOrigin.START else os.SEEK_CUR)
            return True

    form = sound_format(file)
    kinds = {MediaFormat.WAV: "WAV", MediaFormat.MP3: "MP3", MediaFormat.FLAC: "FLAC", MediaFormat.VORBIS: "VORBIS"}
    n_samples = 0
    try:
        for block in miniaudio.stream_any(
            Source(),
            miniaudio.FileFormat[kinds[form]],
            miniaudio.SampleFormat.FLOAT32,
            1,
            sample_rate,
            _BLOCK_FRAMES,
        ):
            samples = np.array(block, np.float32)
            check_finite(samples, form)
            n_samples += len(samples)
            if n_samples > MAX_LENGTH_S * sample_rate:
                raise RequestError(f"A sound is longer than {MAX_LENGTH_S // 3600} hours.", "Send it in shorter parts.")
            yield samples
    except miniaudio.MiniaudioError as error:
        raise RequestError(f"A sound ({form}) is damaged: {error}.", "Send a whole file.") from None
    check_n_samples(n_samples, sample_rate, form)


def sound_format(file: BinaryIO) -> MediaFormat:
    """Return the format of a sound, whose next byte is then its first. Raises RequestError for any other file."""
    file.seek(0)
    begin = file.read(_BEGIN_BYTES)
    file.seek(0)
    form = format_of(begin)
    if form.kind is not MediaKind.SOUND:
        raise RequestError(f"The file is a {form.kind} ({form}).", "Send a sound: WAV, MP3, FLAC or Ogg Vorbis.")
    return form


def wav_of(samples: Samples, sample_rate: int) -> bytes:
    """Return a WAV file of exactly these samples: of 32-bit floats, in one channel."""
    data, n_bytes, ieee_float = samples.tobytes(), 4, 3
    rates = (sample_rate, n_bytes * sample_rate)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, ieee_float, 1, *rates, n_bytes, 8 * n_bytes)
    content = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(content)) + content


def _messages(file: BinaryIO, sample_rate: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield what the parent gets of `file`: a message each, and the bytes behind it."""
    n_bytes = file.seek(0, os.SEEK_END)
    form = sound_format(file)
    length_s = declared_s(file.read(_BEGIN_BYTES), n_bytes, form)
    yield {"length_s": length_s}, b""
    for window in windows_of(decoded_blocks(file, sample_rate), sample_rate):
        message = {
            "begin_s": window.begin / sample_rate,
            "end_s": (window.begin + len(window.samples)) / sample_rate,
            "is_cut": window.is_cut,
            "is_silent": window.is_silent,
        }
        yield message, b"" if window.is_silent else wav_of(window.samples, sample_rate)


def main() -> None:
    """Write the windows of the file on stdin, at the sample rate that the first argument says, until the parent reads
    no more."""
    sample_rate = int(sys.argv[1])
    if AUDIO.is_installed:  # imported before memory is limited
        import miniaudio  # noqa: F401
    limit_growth(MAX_MEMORY_BYTES)
    file, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # what decoders print may come from the file
        os.dup2(nothing, descriptor)

    def send(message: dict[str, Any], data: bytes = b"") -> None:
        replies.write(json.dumps({**message, "n_bytes": len(data)}).encode() + b"\n")
        replies.write(data)
        replies.flush()

    try:
        for message, data in _messages(file, sample_rate):
            send(message, data)
        send({"is_end": True})
    except UserError as error:
        info = ErrorInfo.of(error)
        send({"cause": info.cause, "remedy": info.remedy})
    except MemoryError:
        send({"cause": "A sound needs too much memory to decode.", "remedy": "Save it as WAV, and send that."})


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has gone, or wants no more
        os._exit(0)
