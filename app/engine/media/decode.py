"""Files → pixels and samples, in a child process (this module as `__main__`), for they are untrusted.

A file's first bytes decide what it is, and its declared size is checked before anything is decoded.
`app.engine.media.decoder_process` kills a child that takes too long. Pillow decodes pictures, miniaudio sounds: the
same C library as llama.cpp's, so the samples are the same.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.common.extras import AUDIO
from app.common.media_formats import MediaFormat, MediaKind, format_of, without_damaged_metadata
from app.engine.media.chunks import MAX_SIDE, MAX_SOUND_S, MIN_SOUND_S, Picture, Sound
from app.protocol.errors import RequestError
from quantizer.system.errors import ErrorInfo, UserError
from quantizer.system.memory_limit import limit_growth

MAX_PIXELS = 100_000_000  # 300 MB of RGB while a picture is decoded
MAX_RATIO = 200  # of the sides; projectors cut a picture into squares
MAX_MEMORY_BYTES = 1 << 30
_BLOCK_FRAMES = 16_384
_WHITE = (255, 255, 255)
_ORIENTATION = 0x0112  # of EXIF
_MP3_KBPS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)  # layer III of MPEG 1
_MP3_KBPS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # of MPEG 2 and 2.5
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_N_SAMPLED_FRAMES = 200


def decode_picture(data: bytes) -> Picture:
    """Return the first frame of a picture as RGB: upright, over white, its sides at most MAX_SIDE. Raises RequestError
    for a damaged one, and for one whose declared size is out of bounds."""
    from PIL import Image, UnidentifiedImageError

    form = format_of(data)
    Image.MAX_IMAGE_PIXELS = None  # Pillow only warns at its limit; ours is checked before any pixel is decoded
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, which is not used
            with Image.open(io.BytesIO(without_damaged_metadata(data)), formats=[form.name]) as image:
                return _upright_rgb(image, form)
    except UserError:
        raise
    except MemoryError:
        raise RequestError("A picture needs too much memory to decode.", "Send a smaller one.") from None
    except UnidentifiedImageError:
        raise RequestError(f"A picture ({form}) is damaged: it has no valid header.", "Send a whole file.") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and more
        words = "".join(filter(str.isprintable, str(error)))[:120] or type(error).__name__
        raise RequestError(f"A picture ({form}) is damaged: {words}.", "Send a whole file.") from None


def _upright_rgb(image: Any, form: MediaFormat) -> Picture:
    from PIL import Image, ImageOps

    width, height = image.size
    if not 0 < width * height <= MAX_PIXELS:
        cause = f"A picture has {width:,} × {height:,} pixels."
        raise RequestError(cause, f"Send one of 1 to {MAX_PIXELS:,} pixels.")
    if max(image.size) > MAX_RATIO * min(image.size):
        cause = f"A picture of {width:,} × {height:,} pixels is too narrow."
        raise RequestError(cause, f"Send one whose sides differ by at most {MAX_RATIO} to 1.")
    if form is MediaFormat.JPEG:  # decodes fewer pixels where the result needs fewer
        image.draft("RGB", (MAX_SIDE, MAX_SIDE))
    image.load()
    image = _without_palette(image)
    if max(image.size) > MAX_SIDE:
        image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS, reducing_gap=1.0)
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGBA":
        background = Image.new("RGBA", image.size, (*_WHITE, 255))
        background.alpha_composite(image)
        image = background
    rgb = image.convert("RGB")
    return Picture(rgb.width, rgb.height, rgb.tobytes())


def _without_palette(image: Any) -> Any:
    """Return the picture in a mode that can be scaled: RGBA where something is transparent, else gray or RGB."""
    from PIL import Image

    if image.mode in ("PA", "LA", "La", "RGBa") or "transparency" in image.info:
        return image.convert("RGBA")
    if image.mode.startswith("I") or image.mode == "F":
        # 16 or 32 bits a pixel, which Pillow would clip at 255: scaled, by the largest value where no range is known.
        values = np.nan_to_num(np.asarray(image, np.float32))
        highest = 65_535.0 if image.mode.startswith("I;16") else float(values.max(initial=0))
        return Image.fromarray((np.clip(values / max(highest, 1e-30), 0, 1) * 255).round().astype(np.uint8))
    return image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")


def decode_sound(data: bytes, sample_rate: int) -> Sound:
    """Return a sound as one channel at `sample_rate`. Raises RequestError for a damaged or empty one, and for one
    shorter than MIN_SOUND_S or longer than MAX_SOUND_S."""
    if not AUDIO.is_installed:
        raise AUDIO.missing
    import miniaudio

    form = format_of(data)
    _check_length(declared_s(data, len(data), form))
    max_samples = MAX_SOUND_S * sample_rate
    blocks, n_samples = [], 0
    try:
        for block in miniaudio.stream_memory(data, miniaudio.SampleFormat.FLOAT32, 1, sample_rate, _BLOCK_FRAMES):
            n_samples += len(block)
            _check_length(MAX_SOUND_S + 1 if n_samples > max_samples else 0)  # a file may be longer than it declares
            blocks.append(np.array(block, np.float32))
    except miniaudio.MiniaudioError as error:
        raise RequestError(f"A sound ({form}) is damaged: {error}.", "Send a whole file.") from None
    check_n_samples(n_samples, sample_rate, form)
    samples = np.concatenate(blocks)
    check_finite(samples, form)
    return Sound(samples)


def check_n_samples(n_samples: int, sample_rate: int, form: MediaFormat) -> None:
    """Raise RequestError for a sound without samples, and for one shorter than MIN_SOUND_S."""
    if not n_samples:
        raise RequestError(f"A sound ({form}) has no samples.", "Send a whole file.")
    if n_samples < MIN_SOUND_S * sample_rate:
        cause = f"A sound has {1000 * n_samples / sample_rate:.0f} ms."
        raise RequestError(cause, f"Send one of at least {1000 * MIN_SOUND_S:.0f} ms.")


def check_finite(samples: NDArray[np.float32], form: MediaFormat) -> None:
    if not np.isfinite(samples).all():
        raise RequestError(f"A sound ({form}) contains NaN or infinite samples.", "Send another file.")


def declared_s(begin: bytes, n_bytes: int, form: MediaFormat) -> float:
    """Return how long a sound of `n_bytes` says it is, 0 where its `begin` does not: the decoder stops at the limit in
    any case. Vorbis says it at its end."""
    import miniaudio

    readers = {
        MediaFormat.WAV: miniaudio.wav_get_info,
        MediaFormat.FLAC: miniaudio.flac_get_info,
        MediaFormat.VORBIS: miniaudio.vorbis_get_info,
    }
    if form is MediaFormat.MP3:
        return _mp3_s(begin, n_bytes)
    if form is MediaFormat.VORBIS and len(begin) < n_bytes:
        return 0.0
    if form is MediaFormat.WAV and len(begin) < n_bytes:  # miniaudio counts what is there
        found = begin.find(b"fmt ")
        bytes_per_s = int.from_bytes(begin[found + 16 : found + 20], "little") if found > 0 else 0
        return n_bytes / bytes_per_s if bytes_per_s else 0.0
    try:
        return float(readers[form](begin).duration)
    except miniaudio.MiniaudioError:
        return 0.0


def _check_length(length_s: float) -> None:
    if not length_s <= MAX_SOUND_S:  # NaN too
        known = f"{length_s / 60:,.0f} minutes" if math.isfinite(length_s) and length_s > MAX_SOUND_S + 1 else "more"
        cause = f"A sound is longer than {MAX_SOUND_S // 60} minutes ({known})."
        raise RequestError(cause, "Send it in shorter parts.")


def _mp3_s(data: bytes, n_bytes: int) -> float:
    """Return about how long an MP3 of `n_bytes` is, from the first frames in `data`; 0 where none is found."""
    begin = 0
    if data.startswith(b"ID3") and len(data) >= 10:  # the tag has its size in four times seven bits
        for byte in data[6:10]:
            begin = begin << 7 | byte & 0x7F
        begin += 10
    position, n_frames, sum_s = begin, 0, 0.0
    while n_frames < _N_SAMPLED_FRAMES and position + 4 <= len(data):
        frame = _mp3_frame(data[position : position + 4])
        if frame is None:
            break
        frame_bytes, frame_s = frame
        position, n_frames, sum_s = position + frame_bytes, n_frames + 1, sum_s + frame_s
    return sum_s * (n_bytes - begin) / (position - begin) if n_frames else 0.0


def _mp3_frame(header: bytes) -> tuple[int, float] | None:
    """Return bytes and seconds of the frame with this header, None for an invalid one."""
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    rate, kbps = header[2] >> 2 & 3, header[2] >> 4
    if header[0] != 0xFF or header[1] < 0xE0 or version == 1 or layer != 1 or rate == 3 or kbps in (0, 15):
        return None
    is_first = version == 3
    hertz = _MP3_RATES[version][rate]
    n_samples = 1152 if is_first else 576
    bit_rate = 1000 * (_MP3_KBPS_1 if is_first else _MP3_KBPS_2)[kbps]
    return n_samples // 8 * bit_rate // hertz + (header[2] >> 1 & 1), n_samples / hertz


def _serve(job: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        if job["media"] == MediaKind.PICTURE:
            picture = decode_picture(data)
            return {"width": picture.width, "height": picture.height}, picture.rgb
        return {}, decode_sound(data, job["sample_rate"]).samples.tobytes()
    except UserError as error:
        info = ErrorInfo.of(error)
        return {"cause": info.cause, "remedy": info.remedy}, b""
    except MemoryError:
        return {"cause": f"A {job['media']} needs too much memory to decode.", "remedy": "Send a smaller one."}, b""


def main() -> None:
    """Reply to each job on stdin: a line of JSON and bytes, both ways, until stdin ends."""
    from PIL import Image

    if AUDIO.is_installed:  # imported before memory is limited, as Pillow is
        import miniaudio  # noqa: F401

    Image.init()
    limit_growth(MAX_MEMORY_BYTES)
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # what decoders print may come from the file: none of it gets into replies or a log
        os.dup2(nothing, descriptor)
    while line := jobs.readline():
        job = json.loads(line)
        reply, data = _serve(job, jobs.read(job["n_bytes"]))
        replies.write(json.dumps({**reply, "n_bytes": len(data)}).encode() + b"\n")
        replies.write(data)
        replies.flush()


if __name__ == "__main__":
    main()
