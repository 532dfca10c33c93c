"""A saved sequence as a file: a state and the tokens that it is of.

Owns the format and the names of the files of a folder: one sequence a file, written beside and renamed, so that a kill
leaves none half; checked against the tokens and a checksum when read. Several processes may share a folder: a file that
another removed is only a miss. Knows nothing of what a state holds, or of which sequences are worth a file.
"""

from __future__ import annotations

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
    """What a state is of: `tokens`, computed in a `namespace`."""

    namespace: str
    tokens: Tokens


def write_state(folder: Path, name: str, label: StateKey, state: bytes | bytearray, max_bytes: int) -> int:
    """Write the file `name` and return its size, 0 when it is larger than `max_bytes` or the disk refuses.

    These files only save time: who is refused keeps the state in memory as long as there is room.
    """
    header, tokens = _header(label, state), label.tokens
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
    """Yield name, label and bytes of each file, the least recently used first.

    What no one will finish or can read is removed.
    """
    for path in sorted(folder.iterdir(), key=_used) if folder.is_dir() else ():
        found = _read_label(path) if not writer_of(path) else None
        if found is not None:
            yield (path.name, *found)
        elif not _is_being_written(path):
            path.unlink(missing_ok=True)


def read_state(path: Path, label: StateKey) -> bytes | None:
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
    is_ours = data[begin:middle] == label.tokens.tobytes() and _header(label, state) == json.dumps(header).encode()
    return state if is_ours else None


def touch(path: Path) -> None:
    """Count the file as used now."""
    try:
        os.utime(path)
    except OSError:  # gone: the next load is a miss
        return


def _header(label: StateKey, state: bytes | bytearray) -> bytes:
    checksum = zlib.crc32(state, zlib.crc32(label.tokens.tobytes()))
    sizes = {"n_tokens": len(label.tokens), "state_bytes": len(state), "crc32": checksum}
    return json.dumps({"namespace": label.namespace, **sizes}).encode()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _is_being_written(path: Path) -> bool:
    return is_process_alive(writer_of(path))


def _read_label(path: Path) -> tuple[StateKey, int] | None:
    """Return the label in a file and the file's size, None when it is not a whole file of ours."""
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
            label = StateKey(str(header["namespace"]), tokens)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (label, n_bytes) if is_whole else None


def _read_begin(data: bytes) -> tuple[dict[str, Any], int] | None:
    """Return the header and where the tokens begin."""
    begin = len(_MAGIC) + _LENGTH.size
    if len(data) < begin or not data.startswith(_MAGIC):
        return None
    end = begin + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    return (json.loads(data[begin:end]), end) if end <= len(data) else None
