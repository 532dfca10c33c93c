"""The store of saved sequence states: in host memory, and on disk for the next start.

Owns the files under `<cache>/prefix/<model fingerprint>` and the states in memory; the least recently used are dropped
first. Each state is a file, written under another name and renamed, so that a kill leaves no incomplete file; checked
against its tokens and a checksum when read. Several processes may share a folder: a file that another removed is a
miss. Independent of the states' contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.files import write_atomically, writer_of
from quantizer.process import is_process_alive

__all__ = ["SavedMatch", "StateKey", "StateStore", "Tokens", "read_state", "states_in", "write_state"]

MAX_MEMORY_BYTES = 1 << 30
MAX_DISK_BYTES = 4 << 30
_MAGIC = b"localllm-seq-1\n\0"
_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 4096

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class StateKey:
    """Key of a state: its `tokens`, computed in a `namespace`."""

    namespace: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class SavedMatch:
    """The longest saved prefix of a prompt: `n_tokens` of the `n_saved` of the state called `name`."""

    name: str
    n_tokens: int
    n_saved: int


@dataclass(slots=True)
class _Entry:
    """A saved state. `state` is None while on disk only; `file_bytes` is 0 while in memory only."""

    key: StateKey
    state: bytes | bytearray | None
    file_bytes: int


class StateStore:
    """Saved states of one model. Use it from one thread; it writes files in a thread of its own.

    A `namespace` stands for what states depend on besides tokens; states of one never match in another.
    """

    def __init__(
        self, folder: Path, max_memory_bytes: int = MAX_MEMORY_BYTES, max_disk_bytes: int = MAX_DISK_BYTES
    ) -> None:
        self._folder = folder
        self._max_memory_bytes = max_memory_bytes
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.Lock()  # guards _entries, which the writing thread changes too
        self._entries = {  # the least recently used first
            name: _Entry(key, None, n_bytes) for name, key, n_bytes in states_in(folder)
        }
        self._to_write: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_files, name="prefix-writer", daemon=True)
        self._writer.start()

    def match(self, tokens: Sequence[int], namespace: str = "") -> SavedMatch | None:
        """Return the saved state of `namespace` with the longest common prefix with `tokens`, None without any."""
        token_array = np.asarray(tokens, np.int32)
        with self._lock:
            found = [
                SavedMatch(name, _n_common(entry.key.tokens, token_array), len(entry.key.tokens))
                for name, entry in self._entries.items()
                if entry.key.namespace == namespace
            ]
        best = max(found, key=lambda match: (match.n_tokens, -match.n_saved), default=None)
        return best if best is not None and best.n_tokens else None

    def load(self, match: SavedMatch) -> bytes | bytearray | None:
        """Return the state of a match, None if its file is missing or invalid."""
        with self._lock:
            entry = self._entries.get(match.name)
        if entry is None:
            return None
        state = entry.state if entry.state is not None else read_state(self._folder / match.name, entry.key)
        with self._lock:
            self._entries.pop(match.name, None)
            if state is not None:
                self._entries[match.name] = entry  # now the most recently used
        if entry.file_bytes:
            with contextlib.suppress(OSError):  # a missing file is a miss at the next load
                os.utime(self._folder / match.name)  # the file is used now
        return state

    def save(self, tokens: Sequence[int], state: bytes | bytearray, namespace: str = "") -> None:
        """Save a state; states of its namespace that are prefixes of it are removed."""
        token_array = np.asarray(tokens, np.int32)
        name = hashlib.blake2b(namespace.encode() + token_array.tobytes(), digest_size=16).hexdigest()
        with self._lock:
            others = [(name, entry.key) for name, entry in self._entries.items() if entry.key.namespace == namespace]
            for prefix in [name for name, key in others if _n_common(key.tokens, token_array) == len(key.tokens)]:
                self._remove(prefix)
            self._entries[name] = _Entry(StateKey(namespace, token_array), state, 0)
        self._to_write.put(name)

    @property
    def max_state_bytes(self) -> int:
        """The largest state to save: half of the memory for all."""
        return self._max_memory_bytes // 2

    def has(self, tokens: Sequence[int], namespace: str = "") -> bool:
        """Return whether a saved state of `namespace` begins with all of `tokens`."""
        match = self.match(tokens, namespace)
        return match is not None and match.n_tokens == len(tokens)

    def close(self) -> None:
        """Write the remaining states to disk and end the writing thread."""
        self._to_write.put(None)
        self._writer.join()

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name)
        if entry.file_bytes:
            (self._folder / name).unlink(missing_ok=True)

    # The writing thread

    def _write_files(self) -> None:
        while (name := self._to_write.get()) is not None:
            with self._lock:
                entry = self._entries.get(name)
            if entry is not None and entry.state is not None and not entry.file_bytes:
                n_bytes = write_state(self._folder, name, entry.key, entry.state, self._max_disk_bytes)
                with self._lock:
                    entry.file_bytes = n_bytes
                    if self._entries.get(name) is not entry:  # replaced while it was being written
                        (self._folder / name).unlink(missing_ok=True)
            self._shrink()

    def _shrink(self) -> None:
        """Drop states from memory and files from disk, the least recently used first, down to the limits."""
        with self._lock:
            n_memory = sum(len(entry.state) for entry in self._entries.values() if entry.state is not None)
            n_disk = sum(entry.file_bytes for entry in self._entries.values())
            for name, entry in list(self._entries.items()):
                if n_memory > self._max_memory_bytes and entry.state is not None:
                    n_memory -= len(entry.state)
                    entry.state = None
                if n_disk > self._max_disk_bytes and entry.file_bytes:
                    n_disk -= entry.file_bytes
                    (self._folder / name).unlink(missing_ok=True)
                    entry.file_bytes = 0
                if entry.state is None and not entry.file_bytes:
                    del self._entries[name]


def _n_common(left: Tokens, right: Tokens) -> int:
    n_most = min(len(left), len(right))
    differs = left[:n_most] != right[:n_most]
    return int(differs.argmax()) if differs.any() else n_most


def write_state(folder: Path, name: str, key: StateKey, state: bytes | bytearray, max_bytes: int) -> int:
    """Write the file `name` and return its size, 0 if it is larger than `max_bytes` or cannot be written.

    The files are only a cache, so failures are no errors.
    """
    header, tokens = _header(key, state), key.tokens
    n_bytes = len(_MAGIC) + _LENGTH.size + len(header) + tokens.nbytes + len(state)
    if n_bytes > max_bytes:
        return 0
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # these are conversations
        pieces = (_MAGIC, _LENGTH.pack(len(header)), header, tokens.tobytes(), state)
        write_atomically(folder / name, pieces, sync=False)
    except OSError:
        return 0
    return n_bytes


def states_in(folder: Path) -> Iterator[tuple[str, StateKey, int]]:
    """Yield name, key and bytes of each file, the least recently used first; remove invalid and abandoned files."""
    for path in sorted(folder.iterdir(), key=_used) if folder.is_dir() else ():
        found = _read_key(path) if not writer_of(path) else None
        if found is not None:
            yield (path.name, *found)
        elif not is_process_alive(writer_of(path)):
            path.unlink(missing_ok=True)


def read_state(path: Path, key: StateKey) -> bytes | None:
    """Return the state in a file, None if it is missing, damaged or another key's."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    parts = _read_begin(data[: len(_MAGIC) + _LENGTH.size + _MAX_HEADER_BYTES])
    if parts is None:
        return None
    header, begin = parts
    middle = begin + 4 * header["n_tokens"]
    state = data[middle:]
    is_ours = data[begin:middle] == key.tokens.tobytes() and _header(key, state) == json.dumps(header).encode()
    return state if is_ours else None


def _header(key: StateKey, state: bytes | bytearray) -> bytes:
    checksum = zlib.crc32(state, zlib.crc32(key.tokens.tobytes()))
    sizes = {"n_tokens": len(key.tokens), "state_bytes": len(state), "crc32": checksum}
    return json.dumps({"namespace": key.namespace, **sizes}).encode()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _read_key(path: Path) -> tuple[StateKey, int] | None:
    """Return the key in a file and the file's size, None for an incomplete or foreign file."""
    try:
        with path.open("rb") as file:
            parts = _read_begin(file.read(len(_MAGIC) + _LENGTH.size + _MAX_HEADER_BYTES))
            if parts is None:
                return None
            header, begin = parts
            file.seek(begin)
            tokens = np.frombuffer(file.read(4 * header["n_tokens"]), np.int32)
            n_bytes = begin + 4 * header["n_tokens"] + header["state_bytes"]
            is_whole = len(tokens) == header["n_tokens"] and os.fstat(file.fileno()).st_size == n_bytes
            key = StateKey(str(header["namespace"]), tokens)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (key, n_bytes) if is_whole else None


def _read_begin(data: bytes) -> tuple[dict[str, Any], int] | None:
    """Return the header and the offset of the tokens, None for invalid data."""
    begin = len(_MAGIC) + _LENGTH.size
    if len(data) < begin or not data.startswith(_MAGIC):
        return None
    end = begin + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    return (json.loads(data[begin:end]), end) if end <= len(data) else None
