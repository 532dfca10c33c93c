"""Models of two hundred bytes that pass the gate, many of which make a library."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.quantizer.gguf_files import raw_gguf, raw_string

__all__ = ["small_model", "small_shards"]

_STRING, _U16 = 8, 2
_ALIGNMENT = 32
# A tensor of eight F32 numbers.
_WEIGHT = raw_string(b"output_norm.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)


def small_model(path: Path, name: str = "small", **texts: str) -> Path:
    """Write a model called `name` to `path`, with more metadata from `texts`: dots are written as two underscores."""
    fields = {"general.architecture": "llama", "general.name": name}
    fields |= {key.replace("__", "."): value for key, value in texts.items()}
    return _written(path, [_text(key, value) for key, value in fields.items()])


def small_shards(path: Path, n_files: int) -> list[Path]:
    """Write a model in several files, the first of them called after `path`, and return all."""
    paths = [path.with_name(f"{path.stem}-{part:05d}-of-{n_files:05d}.gguf") for part in range(1, n_files + 1)]
    for index, part in enumerate(paths):
        split = [_number("split.no", index), _number("split.count", n_files)]
        _written(part, [_text("general.architecture", "llama"), *split])
    return paths


def _written(path: Path, fields: list[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw_gguf(fields, [_WEIGHT], bytes(_ALIGNMENT)))
    return path


def _text(key: str, value: str) -> bytes:
    return raw_string(key.encode()) + struct.pack("<I", _STRING) + raw_string(value.encode())


def _number(key: str, value: int) -> bytes:
    return raw_string(key.encode()) + struct.pack("<IH", _U16, value)
