"""The file of one saved state: its key, its state and a checksum.

Owns the format. A file is written under another name and renamed, so that a kill leaves no incomplete one; a damaged
one, or another key's, is as good as none. Independent of the states' contents and of which are kept.
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

from app.engine.backend import State
from quantizer.system.files import PRIVATE_FILE, private_folder, write_atomically, writer_of
from quantizer.system.process import is_process_alive

_MAGIC = b"localllm-seq-1\n\0"
_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 4096

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class StateKey:
    """Key of a state: its `tokens`, computed in a `namespace`. A checkpoint has no cells of the attention."""

    namespace: str
    tokens: Tokens
    is_checkpoint: bool = False


def write_state(folder: Path, name: str, key: StateKey, state: State, max_bytes: int) -> int:
    """Write the file `name` and return its size, 0 if it is larger than `max_bytes` or cannot be written.

    The files are only a cache, so failures are no errors.
    """
    header, tokens = _header(key, state), key.tokens
    n_bytes = len(_MAGIC) + _LENGTH.size + len(header) + tokens.nbytes + len(state)
    if n_bytes > max_bytes:
        return 0
    try:
        private_folder(folder)
        pieces = (_MAGIC, _LENGTH.pack(len(header)), header, tokens.tobytes(), state)
        write_atomically(folder / name, pieces, sync=False, mode=PRIVATE_FILE)
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


def read_state(path: Path, key: StateKey) -> State | None:
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
    state = memoryview(data)[middle:]
    is_ours = data[begin:middle] == key.tokens.tobytes() and _header(key, state) == json.dumps(header).encode()
    return state if is_ours else None


def _header(key: StateKey, state: State) -> bytes:
    checksum = zlib.crc32(state, zlib.crc32(key.tokens.tobytes()))
    sizes = {"n_tokens": len(key.tokens), "state_bytes": len(state), "crc32": checksum}
    kind = {"is_checkpoint": True} if key.is_checkpoint else {}
    return json.dumps({"namespace": key.namespace, **sizes, **kind}).encode()


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
            key = StateKey(str(header["namespace"]), tokens, bool(header.get("is_checkpoint")))
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
