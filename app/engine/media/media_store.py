"""Layouts and embeddings on disk, so that no picture or sound is encoded twice, across restarts too.

Owns the files under `<cache>/media/<fingerprint of model and projector>`; the least recently used are removed first.
Privacy is as for saved prefixes: what may be in memory only never reaches the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from app.engine.cache_file import conversation_of, file_name, read_header, remove_file, whole_files, write_file
from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from app.engine.request import IN_MEMORY
from quantizer.system.files import read_regular

_KIND = b"localllm-media1\n"
_N_AXES = 3
MAX_DISK_BYTES = 1 << 30
_What: TypeAlias = Literal["layout", "embeddings"]
Content = TypeVar("Content")


class MediaStore:
    """Saved layouts and embeddings of one model and projector; with `max_disk_bytes` of 0 it saves none."""

    def __init__(self, folder: Path, max_disk_bytes: int = MAX_DISK_BYTES) -> None:
        self._folder = folder
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.Lock()
        self._files: dict[str, tuple[str, int]] = {}  # by key: file name and bytes, the least recently used first
        for path in whole_files(folder):
            if conversation_of(path.name) and max_disk_bytes:
                with contextlib.suppress(OSError):  # another process removed it
                    self._files[path.name.partition("-")[0]] = (path.name, path.stat().st_size)
            else:
                remove_file(path)

    def layout(self, key: str) -> MediaLayout | None:
        return self._read("layout", key, _layout_of)

    def embeddings(self, content_id: str) -> Embeddings | None:
        return self._read("embeddings", content_id, _embeddings_of)

    def has_layout(self, key: str) -> bool:
        with self._lock:
            return _file_key("layout", key) in self._files

    def has_embeddings(self, content_id: str) -> bool:
        with self._lock:
            return _file_key("embeddings", content_id) in self._files

    def save_layout(self, key: str, layout: MediaLayout, conversation: str) -> None:
        positions = [part.positions for part in layout.parts if isinstance(part, MediaChunk)]
        content = b"".join(np.ascontiguousarray(each, "<i4").tobytes() for each in positions if each is not None)
        self._write("layout", key, {"parts": [_described(part) for part in layout.parts]}, content, conversation)

    def save_embeddings(self, content_id: str, embeddings: Embeddings, conversation: str) -> None:
        content = np.ascontiguousarray(embeddings, "<f4").tobytes()
        self._write("embeddings", content_id, {"shape": list(embeddings.shape)}, content, conversation)

    def forget(self, conversations: Collection[str]) -> None:
        with self._lock:
            for key, (name, _) in list(self._files.items()):
                if conversation_of(name) in conversations:
                    self._remove(key)

    def _read(self, what: _What, key: str, parse: Callable[[dict[str, Any], bytes], Content]) -> Content | None:
        """Return what a file contains, None if it is missing, damaged or another key's."""
        file_key = _file_key(what, key)
        with self._lock:
            name, _ = self._files.get(file_key, ("", 0))
        if not name:
            return None
        content = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            data = read_regular(self._folder / name, self._max_disk_bytes)
            header, begin = read_header(data, _KIND)
            checksum = header.pop("crc32")
            if header["key"] == key and checksum == _checksum(header, data[begin:]):
                content = parse(header, data[begin:])
        with self._lock:
            if self._files.get(file_key, ("",))[0] != name:
                return None  # forgotten while it was read
            if content is None:
                self._remove(file_key)
                return None
            self._files[file_key] = self._files.pop(file_key)  # now the most recently used
        with contextlib.suppress(OSError):
            os.utime(self._folder / name)
        return content

    def _write(self, what: _What, key: str, described: dict[str, Any], content: bytes, conversation: str) -> None:
        if not self._max_disk_bytes or conversation == IN_MEMORY:
            return
        file_key, header = _file_key(what, key), {"key": key, **described}
        header["crc32"] = _checksum(header, content)
        name = file_name(file_key, conversation)
        n_bytes = write_file(self._folder / name, _KIND, header, (content,), self._max_disk_bytes)
        with self._lock:
            if self._files.get(file_key, (name,))[0] != name:
                self._remove(file_key)
            self._files.pop(file_key, None)
            if n_bytes:
                self._files[file_key] = (name, n_bytes)
            n_used = sum(size for _, size in self._files.values())
            while n_used > self._max_disk_bytes:
                oldest = next(iter(self._files))
                n_used -= self._files[oldest][1]
                self._remove(oldest)

    def _remove(self, key: str) -> None:
        name, _ = self._files.pop(key)
        remove_file(self._folder / name)  # else at the next start


def _checksum(header: dict[str, Any], content: bytes) -> int:
    """Return the checksum of a file, also of its header: a damaged number there would make another layout."""
    return zlib.crc32(content, zlib.crc32(json.dumps(header).encode()))


def _file_key(what: _What, key: str) -> str:
    return hashlib.blake2b(f"{what}/{key}".encode(), digest_size=16).hexdigest()


def _layout_of(header: dict[str, Any], content: bytes) -> MediaLayout:
    parts, begin = [], 0
    for described in header["parts"]:
        part, begin = _part(described, content, begin)
        parts.append(part)
    return MediaLayout(tuple(parts))


def _embeddings_of(header: dict[str, Any], content: bytes) -> Embeddings:
    n_tokens, n_embd = header["shape"]
    return np.frombuffer(content, "<f4").reshape(n_tokens, n_embd).astype(np.float32)


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
