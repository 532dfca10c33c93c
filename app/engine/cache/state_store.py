"""The store of saved sequence states: in host memory, and on disk for the next start.

Owns the files under `<cache>/prefix/<model fingerprint>` and the states in memory; the least recently used are dropped
first. Independent of the states' contents and of the file format.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.engine.cache.state_file import StateKey, Tokens, read_state, states_in, touch, write_state

__all__ = ["SavedMatch", "StateStore"]

MAX_MEMORY_BYTES = 1 << 30
MAX_DISK_BYTES = 4 << 30


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
            touch(self._folder / match.name)
        return state

    def save(self, tokens: Sequence[int], state: bytes | bytearray, namespace: str = "") -> None:
        """Save a state; states of its namespace that are prefixes of it are removed."""
        token_array = np.asarray(tokens, np.int32)
        name = hashlib.blake2b(namespace.encode() + token_array.tobytes(), digest_size=16).hexdigest()
        with self._lock:
            others = [(name, entry.key) for name, entry in self._entries.items() if entry.key.namespace == namespace]
            for prefix in [name for name, key in others if _begins(key.tokens, token_array)]:
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


def _begins(begin: Tokens, whole: Tokens) -> bool:
    return len(begin) <= len(whole) and _n_common(begin, whole) == len(begin)
