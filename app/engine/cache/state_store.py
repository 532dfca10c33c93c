"""Computed sequences outside the KV cache: in host memory, and from there on disk for the next start.

Owns what is kept of the files under `<cache>/prefix/<model fingerprint>` and of their states in memory: the least
recently used go first. Knows nothing of what a state holds, or of how a file is written.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from app.engine.cache.state_file import StateKey, Tokens, read_state, states_in, touch, write_state

__all__ = ["SavedMatch", "StateStore", "fingerprint", "model_key"]

MAX_MEMORY_BYTES = 1 << 30
MAX_DISK_BYTES = 4 << 30
_N_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class SavedMatch:
    """The longest saved begin of a prompt: `n_tokens` of the `n_saved` of the sequence called `name`."""

    name: str
    n_tokens: int
    n_saved: int


@dataclass(slots=True)
class _Entry:
    """A saved sequence. `state` is None while on disk only; `file_bytes` is 0 while in memory only."""

    label: StateKey
    state: bytes | bytearray | None
    file_bytes: int


def fingerprint(path: Path, *parts: object) -> str:
    """Return a name for the file's weights: its size and 64 samples of 4 KiB spread over it, and `parts`.

    States fit only the very same weights in the very same layout; `parts` name whatever else decides that.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12)
    n_bytes = path.stat().st_size
    digest.update(n_bytes.to_bytes(8, "little"))
    with path.open("rb") as file:
        for index in range(_N_SAMPLES):
            file.seek(n_bytes * index // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def model_key(path: Path) -> str:
    """Return the name under which what was learnt here of the model at `path` is kept: its weights and the build of
    llama.cpp that runs them."""
    return fingerprint(path, metadata.version("llama-cpp-python"))


class StateStore:
    """Saved sequences of one model. Use it from one thread; a second one of its own writes the files.

    A `namespace` names what states depend on besides the tokens: those of one are never matched in another.
    """

    def __init__(
        self, folder: Path, max_memory_bytes: int = MAX_MEMORY_BYTES, max_disk_bytes: int = MAX_DISK_BYTES
    ) -> None:
        self._folder = folder
        self._max_memory_bytes = max_memory_bytes
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.Lock()  # guards _entries, which the writing thread touches too
        self._entries = {  # the least recently used first
            name: _Entry(label, None, n_bytes) for name, label, n_bytes in states_in(folder)
        }
        self._to_write: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_files, name="prefix-writer", daemon=True)
        self._writer.start()

    def match(self, tokens: Sequence[int], namespace: str = "") -> SavedMatch | None:
        """Return the saved sequence of `namespace` that begins like `tokens` for longest, None when none does."""
        wanted = np.asarray(tokens, np.int32)
        with self._lock:
            found = [
                SavedMatch(name, _n_common(entry.label.tokens, wanted), len(entry.label.tokens))
                for name, entry in self._entries.items()
                if entry.label.namespace == namespace
            ]
        best = max(found, key=lambda match: (match.n_tokens, -match.n_saved), default=None)
        return best if best is not None and best.n_tokens else None

    def load(self, match: SavedMatch) -> bytes | bytearray | None:
        """Return the state of a match, None when its file is gone or not what it should be."""
        with self._lock:
            entry = self._entries.get(match.name)
        if entry is None:
            return None
        state = entry.state if entry.state is not None else read_state(self._folder / match.name, entry.label)
        with self._lock:
            self._entries.pop(match.name, None)
            if state is not None:
                self._entries[match.name] = entry  # now the most recently used
        if entry.file_bytes:
            touch(self._folder / match.name)
        return state

    def save(self, tokens: Sequence[int], state: bytes | bytearray, namespace: str = "") -> None:
        """Keep a sequence. Those of its namespace that it goes on from are contained in it and forgotten."""
        wanted = np.asarray(tokens, np.int32)
        name = hashlib.blake2b(namespace.encode() + wanted.tobytes(), digest_size=16).hexdigest()
        with self._lock:
            of_realm = [(key, entry) for key, entry in self._entries.items() if entry.label.namespace == namespace]
            for key in [key for key, entry in of_realm if _begins(entry.label.tokens, wanted)]:
                self._forget(key)
            self._entries[name] = _Entry(StateKey(namespace, wanted), state, 0)
        self._to_write.put(name)

    @property
    def max_state_bytes(self) -> int:
        """The largest state that is worth keeping: half of the memory that all may take."""
        return self._max_memory_bytes // 2

    def has(self, tokens: Sequence[int], namespace: str = "") -> bool:
        """Return whether a saved sequence of `namespace` begins with all of `tokens`."""
        match = self.match(tokens, namespace)
        return match is not None and match.n_tokens == len(tokens)

    def close(self) -> None:
        """Write what is not yet on disk and end the writing thread."""
        self._to_write.put(None)
        self._writer.join()

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name)
        if entry.file_bytes:
            (self._folder / name).unlink(missing_ok=True)

    # The writing thread

    def _write_files(self) -> None:
        while (name := self._to_write.get()) is not None:
            with self._lock:
                entry = self._entries.get(name)
            if entry is not None and entry.state is not None and not entry.file_bytes:
                n_bytes = write_state(self._folder, name, entry.label, entry.state, self._max_disk_bytes)
                with self._lock:
                    entry.file_bytes = n_bytes
                    if self._entries.get(name) is not entry:  # replaced while it was being written
                        (self._folder / name).unlink(missing_ok=True)
            self._shrink()

    def _shrink(self) -> None:
        """Drop states from memory, then files from disk, the least recently used first, down to the limits."""
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
