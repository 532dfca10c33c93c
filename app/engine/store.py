"""Computed sequences outside the KV cache: in host memory, and from there on disk for the next start.

Owns the files under `<cache>/prefix/<model fingerprint>`: one sequence a file, written beside and renamed, so that a
kill leaves none half; checked against the model, the tokens and a checksum when read; the least recently used go first.
Several processes may share a folder: a file that another removed is only a miss. Knows nothing of what a state holds.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SavedMatch", "SequenceStore", "fingerprint"]

MAX_MEMORY_BYTES = 1 << 30
MAX_DISK_BYTES = 4 << 30
_MAGIC = b"localllm-seq-1\n\0"
_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 4096
_N_SAMPLES, _SAMPLE_BYTES = 64, 4096

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SavedMatch:
    """The longest saved begin of a prompt: `n_tokens` of the `n_saved` of the sequence called `name`."""

    name: str
    n_tokens: int
    n_saved: int


@dataclass(slots=True)
class _Entry:
    """A saved sequence of a realm. `state` is None while on disk only; `file_bytes` is 0 while in memory only."""

    realm: str
    tokens: Tokens
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


class SequenceStore:
    """Saved sequences of one model. Use it from one thread; a second one of its own writes the files.

    A `realm` names what states depend on besides the tokens: those of one are never matched in another.
    """

    def __init__(
        self, folder: Path, max_memory_bytes: int = MAX_MEMORY_BYTES, max_disk_bytes: int = MAX_DISK_BYTES
    ) -> None:
        self._folder = folder
        self._max_memory_bytes = max_memory_bytes
        self._max_disk_bytes = max_disk_bytes
        self._lock = threading.Lock()  # guards _entries, which the writing thread touches too
        self._entries: dict[str, _Entry] = _read_folder(folder)  # the least recently used first
        self._to_write: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_files, name="prefix-writer", daemon=True)
        self._writer.start()

    def match(self, tokens: Sequence[int], realm: str = "") -> SavedMatch | None:
        """Return the saved sequence of `realm` that begins like `tokens` for longest, None when none does."""
        wanted = np.asarray(tokens, np.int32)
        with self._lock:
            found = [
                SavedMatch(name, _n_common(entry.tokens, wanted), len(entry.tokens))
                for name, entry in self._entries.items()
                if entry.realm == realm
            ]
        best = max(found, key=lambda match: (match.n_tokens, -match.n_saved), default=None)
        return best if best is not None and best.n_tokens else None

    def load(self, match: SavedMatch) -> bytes | bytearray | None:
        """Return the state of a match, None when its file is gone or not what it should be."""
        with self._lock:
            entry = self._entries.get(match.name)
        if entry is None:
            return None
        state = entry.state if entry.state is not None else _read_state(self._folder / match.name, entry)
        with self._lock:
            self._entries.pop(match.name, None)
            if state is not None:
                self._entries[match.name] = entry  # now the most recently used
        if entry.file_bytes:
            _touch(self._folder / match.name)
        return state

    def save(self, tokens: Sequence[int], state: bytes | bytearray, realm: str = "") -> None:
        """Keep a sequence. Those of its realm that it goes on from are contained in it and forgotten."""
        wanted = np.asarray(tokens, np.int32)
        name = hashlib.blake2b(realm.encode() + wanted.tobytes(), digest_size=16).hexdigest()
        with self._lock:
            of_realm = [(key, entry) for key, entry in self._entries.items() if entry.realm == realm]
            for key in [key for key, entry in of_realm if _begins(entry.tokens, wanted)]:
                self._forget(key)
            self._entries[name] = _Entry(realm, wanted, state, 0)
        self._to_write.put(name)

    @property
    def max_state_bytes(self) -> int:
        """The largest state that is worth keeping: half of the memory that all may take."""
        return self._max_memory_bytes // 2

    def has(self, tokens: Sequence[int], realm: str = "") -> bool:
        """Return whether a saved sequence of `realm` begins with all of `tokens`."""
        match = self.match(tokens, realm)
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
                n_bytes = _write(self._folder, name, entry, entry.state, self._max_disk_bytes)
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


def _header(entry: _Entry, state: bytes | bytearray) -> bytes:
    checksum = zlib.crc32(state, zlib.crc32(entry.tokens.tobytes()))
    sizes = {"n_tokens": len(entry.tokens), "state_bytes": len(state), "crc32": checksum}
    return json.dumps({"realm": entry.realm, **sizes}).encode()


def _write(folder: Path, name: str, entry: _Entry, state: bytes | bytearray, max_disk_bytes: int) -> int:
    """Write a sequence's file and return its size, 0 when it is too large or the disk refuses: then it stays in memory
    as long as there is room, for these files only save time."""
    header, tokens = _header(entry, state), entry.tokens
    n_bytes = len(_MAGIC) + _LENGTH.size + len(header) + tokens.nbytes + len(state)
    if n_bytes > max_disk_bytes:
        return 0
    partial = folder / f"{name}.{os.getpid()}.part"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # these are conversations
        with partial.open("wb") as file:
            file.writelines((_MAGIC, _LENGTH.pack(len(header)), header, tokens.tobytes(), state))
        partial.replace(folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        return 0
    return n_bytes


def _read_folder(folder: Path) -> dict[str, _Entry]:
    """Return the sequences on disk, least recently used first; remove what no one will finish or can read."""
    entries: dict[str, _Entry] = {}
    if not folder.is_dir():
        return entries
    for path in sorted(folder.iterdir(), key=_used):
        entry = _read_entry(path) if not path.name.endswith(".part") else None
        if entry is not None:
            entries[path.name] = entry
        elif not _is_being_written(path):
            path.unlink(missing_ok=True)
    return entries


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _is_being_written(path: Path) -> bool:
    import psutil

    process = path.name.removesuffix(".part").rpartition(".")[2]
    return path.name.endswith(".part") and process.isdigit() and psutil.pid_exists(int(process))


def _read_entry(path: Path) -> _Entry | None:
    """Return the sequence in a file without its state, None when it is not a whole file of ours."""
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
            entry = _Entry(str(header["realm"]), tokens, None, n_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if is_whole else None


def _read_begin(data: bytes) -> tuple[dict[str, Any], int] | None:
    """Return the header and where the tokens begin."""
    begin = len(_MAGIC) + _LENGTH.size
    if len(data) < begin or not data.startswith(_MAGIC):
        return None
    end = begin + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    return (json.loads(data[begin:end]), end) if end <= len(data) else None


def _read_state(path: Path, entry: _Entry) -> bytes | None:
    """Return the state in a file, None when it is gone, damaged or another sequence's."""
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
    is_ours = data[begin:middle] == entry.tokens.tobytes() and _header(entry, state) == json.dumps(header).encode()
    return state if is_ours else None


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # gone: the next load is a miss
        return
