"""Pictures and sounds for tests, made from numbers."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
from PIL import Image

from app.engine.request import MediaInput

__all__ = ["as_media", "picture", "picture_file", "sound_file"]


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


def as_media(data: bytes, marker: str = "<media>") -> MediaInput:
    return MediaInput(marker, base64.b64encode(data).decode())
