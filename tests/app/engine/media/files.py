"""Pictures and sounds for tests, made from numbers."""

from __future__ import annotations

import base64
import io
import struct
import wave

import numpy as np
from PIL import Image

from app.engine.request import MediaInput

__all__ = ["as_media", "flac_file", "mp3_file", "picture", "picture_file", "sound_file"]


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def picture_file(width: int = 40, height: int = 30, seed: int = 0, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture(width, height, seed).save(file, kind)
    return file.getvalue()


def sound_file(length_s: float = 0.5, sample_rate: int = 16_000, n_channels: int = 1) -> bytes:
    """A WAV file of a tone of 440 Hz."""
    times_s = np.arange(round(length_s * sample_rate)) / sample_rate
    samples = (np.sin(times_s * 440 * 2 * np.pi) * 20_000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(n_channels)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(np.repeat(samples, n_channels).tobytes())
    return file.getvalue()


def mp3_file(n_frames: int = 20) -> bytes:
    """An MP3 of silence: frames of 26 ms at 128 kbit/s and 44,100 Hz."""
    return (b"\xff\xfb\x90\x00" + bytes(413)) * n_frames


def flac_file(n_samples: int = 4096) -> bytes:
    """A FLAC file of noise at 16,000 Hz in one block of 16 bits, which is not compressed."""
    samples = np.random.default_rng(0).integers(-9000, 9000, n_samples).astype(">i2")
    packed = 16_000 << 44 | 0 << 41 | 15 << 36 | n_samples
    information = struct.pack(">HH", n_samples, n_samples) + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    header = b"\xff\xf8\x75\x08\x00" + struct.pack(">H", n_samples - 1)  # a size of its own, 16 kHz, one channel
    frame = header + bytes([_crc(header, 0x07, 8)]) + b"\x02" + samples.tobytes()
    return b"fLaC\x80\x00\x00\x22" + information + frame + struct.pack(">H", _crc(frame, 0x8005, 16))


def _crc(data: bytes, polynomial: int, n_bits: int) -> int:
    value = 0
    for byte in data:
        value ^= byte << (n_bits - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (n_bits - 1) else 0)
            value &= (1 << n_bits) - 1
    return value


def as_media(data: bytes, marker: str = "<media>") -> MediaInput:
    return MediaInput(marker, base64.b64encode(data).decode())
