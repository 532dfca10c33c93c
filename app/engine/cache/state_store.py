"""The store of saved sequence states and checkpoints: in host memory, and on disk for the next start.

Owns the files under `<cache>/prefix/<model fingerprint>` and the states in memory; `retention` decides which files go
first. A checkpoint is written when a state that begins with its tokens is: without the state's cells it is of no use.
Independent of the states' contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend import State
from app.engine.cache.retention import StateKey, Tokens, dropping_order, n_common
from app.engine.cache_file import conversation_of, file_name, read_header, remove_file, whole_files, write_file
from app.engine.request import IN_MEMORY
from quantizer.system.files import open_regular
from quantizer.system.memory_limit import give_back_freed_memory

MAX_MEMORY_BYTES = 1 << 30
MAX_DISK_BYTES = 4 << 30
MAX_CHECKPOINT_BYTES = 256 << 20  # of the checkpoints along one sequence
MIN_CHECKPOINTS, MAX_CHECKPOINTS = 2, 8  # along one sequence
MAX_WRITE_DELAY_S = 10.0  # of a state while the engine computes
_POLL_S = 0.2
_LOOK_S = 2.0  # at free memory, while nothing is written

_KIND = b"localllm-seq-1\n\0"
_MAX_BEGIN_BYTES = 4096  # of a file, up to the end of its header


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
    state: State | None
    file_bytes: int


class StateStore:
    """Saved states of one model. Use it from one thread; it writes files in a thread of its own. A write takes a
    processor from the engine, so it waits for `writing`, unless memory is full or it has waited long. A `namespace`
    stands for what states depend on besides tokens; states of one never match in another. In memory are at most
    `max_memory_bytes`, and at each moment no more than `limit_bytes` returns, given how much they hold; it is asked
    every few seconds, also while nothing is computed."""

    def __init__(
        self,
        folder: Path,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        max_disk_bytes: int = MAX_DISK_BYTES,
        limit_bytes: Callable[[int], int] | None = None,
        max_state_bytes: int | None = None,
    ) -> None:
        self._folder = folder
        self._max_memory_bytes = max_memory_bytes
        self._limit_of = limit_bytes
        # The largest state to save. One that is larger than the limit is in memory until it is written.
        self.max_state_bytes = max_memory_bytes // 2 if max_state_bytes is None else max_state_bytes
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.RLock()  # guards _entries, which the writing thread changes too
        self._entries: dict[str, _Entry] = {}  # the least recently used first
        for name, key, n_bytes in states_in(folder):
            # Former versions did not say whose a state is, so that a deleted chat would leave it behind. The checksum
            # is of the state, which is not read yet: a key that is damaged, such as its namespace, has another name.
            if max_disk_bytes and conversation_of(name) and name == _name_of(key, conversation_of(name)):
                self._entries[name] = _Entry(key, None, n_bytes)
            else:
                remove_file(folder / name)
        self._to_write: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._may_write, self._closing = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write_files, name="prefix-writer", daemon=True)
        self._writer.start()

    def match(self, tokens: Sequence[int], namespace: str = "", *, is_whole: bool = False) -> SavedMatch | None:
        """Return the saved state of `namespace` with the longest common prefix with `tokens`, None without any. With
        `is_whole` only states count whose tokens are all among those."""
        found = self._matches(np.asarray(tokens, np.int32), namespace, is_checkpoint=False)
        usable = [match for match in found if not is_whole or match.n_tokens == match.n_saved]
        best = max(usable, key=lambda match: (match.n_tokens, -match.n_saved), default=None)
        return best if best is not None and best.n_tokens else None

    def checkpoints(self, tokens: Sequence[int], namespace: str = "") -> list[SavedMatch]:
        """Return the checkpoints that `tokens` begin with, the longest first."""
        found = self._matches(np.asarray(tokens, np.int32), namespace, is_checkpoint=True)
        return sorted((match for match in found if match.n_tokens == match.n_saved), key=lambda match: -match.n_tokens)

    def _matches(self, tokens: Tokens, namespace: str, *, is_checkpoint: bool) -> list[SavedMatch]:
        with self._lock:
            return [
                SavedMatch(name, n_common(entry.key.tokens, tokens), len(entry.key.tokens))
                for name, entry in self._entries.items()
                if entry.key.namespace == namespace and entry.key.is_checkpoint == is_checkpoint
            ]

    def adopt(self, tokens: Sequence[int], namespace: str, conversation: str) -> None:
        """Give `conversation`, whose states may reach the disk, those for memory that hold nothing but the first of its
        `tokens`: what was read for it before it had a name, and what it shares with a private chat."""
        prompt = np.asarray(tokens, np.int32)
        with self._lock:
            for name, entry in list(self._entries.items()):
                key = entry.key
                if conversation_of(name) != IN_MEMORY or key.namespace != namespace:
                    continue
                if n_common(key.tokens, prompt) == len(key.tokens):
                    del self._entries[name]
                    self._entries[_name_of(key, conversation)] = entry
                    if not key.is_checkpoint:  # which is written when a state that has its tokens is
                        self._to_write.put(_name_of(key, conversation))

    def load(self, match: SavedMatch) -> State | None:
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

    def save(self, tokens: Sequence[int], state: State, namespace: str = "", conversation: str = "") -> None:
        """Save a state of `conversation`; states of its namespace that are prefixes of it are removed, but for one that
        stays in memory none that may reach the disk. Its checkpoints are written too."""
        key = StateKey(namespace, np.asarray(tokens, np.int32))
        prefixes = self._matches(key.tokens, namespace, is_checkpoint=False)
        with self._lock:
            for match in prefixes:
                is_covered = conversation != IN_MEMORY or conversation_of(match.name) == IN_MEMORY
                if match.n_tokens == match.n_saved and is_covered:
                    self._remove(match.name)
            self._entries[_name_of(key, conversation)] = _Entry(key, state, 0)
        self._to_write.put(_name_of(key, conversation))
        for match in self.checkpoints(tokens, namespace):
            self._to_write.put(match.name)

    def save_checkpoint(
        self,
        tokens: Sequence[int],
        state: State,
        namespace: str = "",
        conversation: str = "",
        branches: Collection[int] = (),
    ) -> None:
        """Keep the checkpoint after `tokens`, and of those before it as many as one sequence may have. The first, where
        chats part, and the last stay; of the others goes the one nearest to its neighbours, and those at `branches`
        only after the rest."""
        key = StateKey(namespace, np.asarray(tokens, np.int32), is_checkpoint=True)
        n_most = min(MAX_CHECKPOINTS, max(MIN_CHECKPOINTS, MAX_CHECKPOINT_BYTES // max(1, len(state))))
        name = _name_of(key, conversation)
        path = [*reversed(self.checkpoints(tokens, namespace)), SavedMatch(name, len(tokens), len(tokens))]
        with self._lock:
            while len(path) > n_most:
                ranks = {
                    index: (path[index].n_tokens in branches, path[index + 1].n_tokens - path[index - 1].n_tokens)
                    for index in range(1, len(path) - 1)
                }
                self._remove(path.pop(min(ranks, key=lambda index: ranks[index])).name)
            self._entries[name] = _Entry(key, state, 0)
        self._to_write.put("")  # the memory may be full now

    def forget(self, conversations: Collection[str]) -> None:
        """Remove every state of `conversations`, and its file."""
        with self._lock:
            for name in [name for name in self._entries if conversation_of(name) in conversations]:
                self._remove(name)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the states in memory; callable from any thread."""
        with self._lock:
            return sum(len(entry.state) for entry in self._entries.values() if entry.state is not None)

    def n_saved(self, tokens: Sequence[int], namespace: str = "", *, is_for_disk: bool = False) -> int:
        """Return how many of the first `tokens` a saved state of `namespace` begins with, if it `is_for_disk` of those
        that may reach it."""
        found = self._matches(np.asarray(tokens, np.int32), namespace, is_checkpoint=False)
        counted = (match for match in found if not is_for_disk or conversation_of(match.name) != IN_MEMORY)
        return max((match.n_tokens for match in counted), default=0)

    def close(self) -> None:
        """Write the remaining states to disk and end the writing thread."""
        self._closing.set()
        self._may_write.set()
        self._to_write.put(None)
        self._writer.join()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Let states be written now: the engine does not compute."""
        self._may_write.set()
        try:
            yield
        finally:
            self._may_write.clear()

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None and entry.file_bytes:
            remove_file(self._folder / name)

    # The writing thread

    def _write_files(self) -> None:
        while (name := self._next_name()) is not None:
            # Until the engine has been idle for a moment: the next request often comes at once, and a write beside a
            # prompt takes a processor from it. A full memory cannot wait, nor a chat for ever.
            deadline_s = time.monotonic() + MAX_WRITE_DELAY_S
            while time.monotonic() < deadline_s and not self._is_over():
                if self._may_write.wait(_POLL_S) and (self._closing.wait(_POLL_S) or self._may_write.is_set()):
                    break
            with self._lock:
                entry = self._entries.get(name)
            is_for_disk = self._max_disk_bytes and conversation_of(name) != IN_MEMORY
            if is_for_disk and entry is not None and entry.state is not None and not entry.file_bytes:
                n_bytes = write_state(self._folder, name, entry.key, entry.state, self._max_disk_bytes)
                with self._lock:
                    entry.file_bytes = n_bytes
                    if self._entries.get(name) is not entry:  # replaced while it was being written
                        remove_file(self._folder / name)
            self._shrink()

    def _next_name(self) -> str | None:
        """Return the next state to write, None at the end; give memory back meanwhile if others need it. All states are
        on disk then that will be."""
        while True:
            try:
                return self._to_write.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._is_over():
                    self._shrink()

    def _limit_bytes(self, n_held: int) -> int:
        return min(self._max_memory_bytes, self._max_memory_bytes if self._limit_of is None else self._limit_of(n_held))

    def _is_over(self) -> bool:
        n_held = self.memory_bytes
        return n_held > self._limit_bytes(n_held)

    def _shrink(self) -> None:
        """Drop states from memory, the least recently used first, and files from disk, down to the limits. What leaves
        memory is read from disk, mostly: only there it matters what is computed again without it."""
        with self._lock:
            n_memory = n_before = self.memory_bytes
            limit_bytes = self._limit_bytes(n_memory)
            for entry in self._entries.values():
                if n_memory > limit_bytes and entry.state is not None:
                    n_memory -= len(entry.state)
                    entry.state = None
            files = [(name, entry) for name, entry in self._entries.items() if entry.file_bytes]
            n_disk = sum(entry.file_bytes for _, entry in files)
            order = dropping_order([entry.key for _, entry in files], [entry.file_bytes for _, entry in files])
            while n_disk > self._max_disk_bytes:
                name, entry = files[next(order)]
                n_disk -= entry.file_bytes
                remove_file(self._folder / name)
                entry.file_bytes = 0
            for name in [name for name, it in self._entries.items() if it.state is None and not it.file_bytes]:
                del self._entries[name]
        if n_memory < n_before:
            give_back_freed_memory()


def _name_of(key: StateKey, conversation: str) -> str:
    kind = b"checkpoint" if key.is_checkpoint else b""
    name = hashlib.blake2b(kind + key.namespace.encode() + key.tokens.tobytes(), digest_size=16).hexdigest()
    return file_name(name, conversation)


def write_state(folder: Path, name: str, key: StateKey, state: State, max_bytes: int) -> int:
    """Write the file `name` and return its size, 0 if it is larger than `max_bytes` or cannot be written."""
    return write_file(folder / name, _KIND, _header(key, state), (key.tokens.tobytes(), state), max_bytes)


def states_in(folder: Path) -> Iterator[tuple[str, StateKey, int]]:
    """Yield name, key and bytes of each file, the least recently used first; remove invalid and abandoned files."""
    for path in whole_files(folder):
        if (found := _read_key(path)) is not None:
            yield (path.name, *found)
        else:
            remove_file(path)


def read_state(path: Path, key: StateKey) -> State | None:
    """Return the state in a file, None if it is missing, damaged or another key's."""
    try:
        with open_regular(path) as file:
            data = file.read()
        header, begin = read_header(data, _KIND)
    except (OSError, ValueError):
        return None
    middle = begin + key.tokens.nbytes
    state = memoryview(data)[middle:]
    return state if data[begin:middle] == key.tokens.tobytes() and _header(key, state) == header else None


def _header(key: StateKey, state: State) -> dict[str, Any]:
    checksum = zlib.crc32(state, zlib.crc32(key.tokens.tobytes()))
    sizes = {"n_tokens": len(key.tokens), "state_bytes": len(state), "crc32": checksum}
    return {"namespace": key.namespace, **sizes, **({"is_checkpoint": True} if key.is_checkpoint else {})}


def _read_key(path: Path) -> tuple[StateKey, int] | None:
    """Return the key in a file and the file's size, None for an incomplete or foreign file."""
    try:
        with open_regular(path) as file:
            header, begin = read_header(file.read(_MAX_BEGIN_BYTES), _KIND)
            n_tokens, state_bytes, file_bytes = (
                header["n_tokens"],
                header["state_bytes"],
                os.fstat(file.fileno()).st_size,
            )
            if not all(type(n) is int and 0 <= n <= file_bytes for n in (n_tokens, state_bytes)):
                return None  # a damaged number asks for no memory
            file.seek(begin)
            tokens = np.frombuffer(file.read(4 * n_tokens), np.int32)
            n_bytes = begin + 4 * n_tokens + state_bytes
            is_whole = len(tokens) == n_tokens and file_bytes == n_bytes
            key = StateKey(str(header["namespace"]), tokens, bool(header.get("is_checkpoint")))
            key.namespace.encode()  # a lone surrogate raises
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (key, n_bytes) if is_whole else None
