"""The file of a saved state: the state and its tokens.

Owns the format and the files of a folder: one state a file, written under another name and renamed, so that a kill
leaves no incomplete file; checked against its tokens and a checksum when read. Several processes may share a folder: a
file that another removed is a miss. Independent of the states' contents.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.files import write_atomically, writer_of
from quantizer.process import is_process_alive

__all__ = ["StateKey", "Tokens", "read_state", "states_in", "touch", "write_state"]

_MAGIC = b"localllm-seq-1\n\0"
_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 4096

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class StateKey:
    """Key of a state: its `tokens`, computed in a `namespace`."""

    namespace: str
    tokens: Tokens


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
        elif not _is_being_written(path):
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


def touch(path: Path) -> None:
    """Count the file as used now."""
    with contextlib.suppress(OSError):  # a missing file is a miss at the next load
        os.utime(path)


def _header(key: StateKey, state: bytes | bytearray) -> bytes:
    checksum = zlib.crc32(state, zlib.crc32(key.tokens.tobytes()))
    sizes = {"n_tokens": len(key.tokens), "state_bytes": len(state), "crc32": checksum}
    return json.dumps({"namespace": key.namespace, **sizes}).encode()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _is_being_written(path: Path) -> bool:
    return is_process_alive(writer_of(path))


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
