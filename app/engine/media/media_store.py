"""Layouts and embeddings on disk, so that no picture or sound is encoded twice, across restarts too.

Owns the files under `<cache>/media/<fingerprint of model and projector>` and their format; the least recently used are
removed first. Privacy is as for saved prefixes: a file's name ends with the conversation whose request made it, so that
it can be removed with it and without reading it, and what may be in memory only never reaches the disk. Several
processes may share a folder: a file that another removed is a miss, and so is a damaged one or one of another key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from app.engine.request import IN_MEMORY
from quantizer.system.files import PRIVATE_FILE, last_use_s, private_folder, write_atomically, writer_of
from quantizer.system.process import is_process_alive

_MAGIC = b"localllm-media1\n"
_LENGTH = struct.Struct("<I")
_N_AXES = 3
MAX_DISK_BYTES = 1 << 30
_NO_CONVERSATION = "none"
Content = TypeVar("Content")


class MediaStore:
    """Saved layouts and embeddings of one model and projector; with `max_disk_bytes` of 0 it saves none."""

    def __init__(self, folder: Path, max_disk_bytes: int = MAX_DISK_BYTES) -> None:
        self._folder = folder
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.Lock()
        self._files: dict[str, tuple[str, int]] = {}  # by key: file name and bytes, the least recently used first
        for path in sorted(folder.iterdir(), key=last_use_s) if folder.is_dir() else ():
            key, _, conversation = path.name.partition("-")
            writer = writer_of(path)
            if conversation and not writer and max_disk_bytes:
                with contextlib.suppress(OSError):  # another process removed it
                    self._files[key] = (path.name, path.stat().st_size)
            elif not (writer and is_process_alive(writer)):  # abandoned, or saving is off
                path.unlink(missing_ok=True)

    def layout(self, key: str) -> MediaLayout | None:
        return self._read(_file_key("layout", key), lambda path: read_layout(path, key))

    def embeddings(self, content_id: str) -> Embeddings | None:
        return self._read(_file_key("embeddings", content_id), lambda path: read_embeddings(path, content_id))

    def has_layout(self, key: str) -> bool:
        with self._lock:
            return _file_key("layout", key) in self._files

    def has_embeddings(self, content_id: str) -> bool:
        with self._lock:
            return _file_key("embeddings", content_id) in self._files

    def save_layout(self, key: str, layout: MediaLayout, conversation: str) -> None:
        most = self._max_disk_bytes
        self._write(_file_key("layout", key), conversation, lambda path: write_layout(path, key, layout, most))

    def save_embeddings(self, content_id: str, embeddings: Embeddings, conversation: str) -> None:
        most = self._max_disk_bytes
        key = _file_key("embeddings", content_id)
        self._write(key, conversation, lambda path: write_embeddings(path, content_id, embeddings, most))

    def forget(self, conversations: Collection[str]) -> None:
        with self._lock:
            for key, (name, _) in list(self._files.items()):
                if name.partition("-")[2] in conversations:
                    self._remove(key)

    def _read(self, key: str, read: Callable[[Path], Content | None]) -> Content | None:
        with self._lock:
            name, _ = self._files.get(key, ("", 0))
        if not name:
            return None
        content = read(self._folder / name)
        with self._lock:
            if self._files.get(key, ("",))[0] != name:
                return None  # forgotten while it was read
            if content is None:
                self._remove(key)
                return None
            self._files[key] = self._files.pop(key)  # now the most recently used
        with contextlib.suppress(OSError):
            os.utime(self._folder / name)
        return content

    def _write(self, key: str, conversation: str, write: Callable[[Path], int]) -> None:
        if not self._max_disk_bytes or conversation == IN_MEMORY:
            return
        name = f"{key}-{conversation or _NO_CONVERSATION}"
        n_bytes = write(self._folder / name)
        with self._lock:
            if self._files.get(key, (name,))[0] != name:
                self._remove(key)
            self._files.pop(key, None)
            if n_bytes:
                self._files[key] = (name, n_bytes)
            n_used = sum(size for _, size in self._files.values())
            while n_used > self._max_disk_bytes:
                oldest = next(iter(self._files))
                n_used -= self._files[oldest][1]
                self._remove(oldest)

    def _remove(self, key: str) -> None:
        name, _ = self._files.pop(key)
        with contextlib.suppress(OSError):  # removed at the next start
            (self._folder / name).unlink(missing_ok=True)


def _file_key(what: Literal["layout", "embeddings"], key: str) -> str:
    return hashlib.blake2b(f"{what}/{key}".encode(), digest_size=16).hexdigest()


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
    """Write the embeddings of a chunk as `write_layout` does."""
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
    """Write a file and return its size, 0 if it is too large or cannot be written: it is only a cache."""
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
