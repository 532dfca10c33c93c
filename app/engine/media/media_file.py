"""The file of one layout, or of the embeddings of one chunk: its key, its content and a checksum.

Owns the format. A file is written under another name and renamed, so that a kill leaves no incomplete one; a damaged
one, or another key's, is as good as none. Independent of which are kept.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from quantizer.system.files import PRIVATE_FILE, private_folder, write_atomically

_MAGIC = b"localllm-media1\n"
_LENGTH = struct.Struct("<I")
_N_AXES = 3


def write_layout(path: Path, key: str, layout: MediaLayout, max_bytes: int) -> int:
    """Write a layout and return the file's size, 0 if it is larger than `max_bytes` or cannot be written."""
    positions = [part.positions for part in layout.parts if isinstance(part, MediaChunk)]
    content = b"".join(np.ascontiguousarray(each, "<i4").tobytes() for each in positions if each is not None)
    return _write(path, {"key": key, "parts": [_described(part) for part in layout.parts]}, content, max_bytes)


def read_layout(path: Path, key: str) -> MediaLayout | None:
    """Return the layout in a file, None if it is missing, damaged or another key's."""
    try:
        header, content = _read(path, key)
        parts, begin = [], 0
        for described in header["parts"]:
            part, begin = _part(described, content, begin)
            parts.append(part)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return MediaLayout(tuple(parts))


def write_embeddings(path: Path, key: str, embeddings: Embeddings, max_bytes: int) -> int:
    """Write the embeddings of a chunk and return the file's size, 0 as `write_layout` does."""
    content = np.ascontiguousarray(embeddings, "<f4").tobytes()
    return _write(path, {"key": key, "shape": list(embeddings.shape)}, content, max_bytes)


def read_embeddings(path: Path, key: str) -> Embeddings | None:
    """Return the embeddings in a file, None if it is missing, damaged or another key's."""
    try:
        header, content = _read(path, key)
        n_tokens, n_embd = header["shape"]
        return np.frombuffer(content, "<f4").reshape(n_tokens, n_embd).astype(np.float32)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, header: dict[str, Any], content: bytes, max_bytes: int) -> int:
    """The files are only a cache, so failures are no errors."""
    data = json.dumps({**header, "crc32": zlib.crc32(content)}).encode()
    n_bytes = len(_MAGIC) + _LENGTH.size + len(data) + len(content)
    if n_bytes > max_bytes:
        return 0
    try:
        private_folder(path.parent)
        pieces = (_MAGIC, _LENGTH.pack(len(data)), data, content)
        write_atomically(path, pieces, sync=False, mode=PRIVATE_FILE)
    except OSError:
        return 0
    return n_bytes


def _read(path: Path, key: str) -> tuple[dict[str, Any], bytes]:
    """Return header and content. Raises OSError, ValueError and KeyError for a file that is not whole or not ours."""
    data = path.read_bytes()
    begin = len(_MAGIC) + _LENGTH.size
    if len(data) < begin or not data.startswith(_MAGIC):
        raise ValueError("not a file of this version")
    end = begin + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    header: dict[str, Any] = json.loads(data[begin:end])
    content = data[end:]
    if header["key"] != key or header["crc32"] != zlib.crc32(content):
        raise ValueError("damaged, or of another key")
    return header, content


def _described(part: tuple[int, ...] | MediaChunk) -> Any:
    if not isinstance(part, MediaChunk):
        return list(part)
    numbers = [part.n_tokens, part.n_positions, int(part.is_causal), int(part.positions is not None)]
    return {"content_id": part.content_id, "numbers": numbers}


def _part(described: Any, content: bytes, begin: int) -> tuple[tuple[int, ...] | MediaChunk, int]:
    """Return a part, and where the positions of the next one begin."""
    if isinstance(described, list):
        return tuple(map(int, described)), begin
    n_tokens, n_positions, is_causal, has_positions = map(int, described["numbers"])
    positions, end = None, begin + 4 * _N_AXES * n_tokens
    if has_positions:
        positions = np.frombuffer(content[begin:end], "<i4").reshape(n_tokens, _N_AXES).astype(np.int32)
        begin = end
    return MediaChunk(str(described["content_id"]), n_tokens, n_positions, bool(is_causal), positions), begin
