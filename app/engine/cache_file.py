"""Files of what can be computed again, states of sequences and embeddings of media: their format and their names.

A file is a line with its kind and version, a header as JSON, and bytes. Its name ends with the conversation whose
request made it, so that it is removed with it and without being read. Several processes may share a folder: a file that
another removed is a miss, and so is a damaged one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quantizer.system.files import last_use_s, write_cache, writer_of
from quantizer.system.process import is_process_alive

_LENGTH = struct.Struct("<I")  # of the header


def file_name(key: str, conversation: str) -> str:
    return f"{key}-{conversation or 'none'}"


def conversation_of(name: str) -> str:
    """Return whose file this is, "" for a name of a former version."""
    return name.partition("-")[2]


def whole_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, the least recently used first; remove those that a killed process left."""
    try:
        paths = sorted(folder.iterdir(), key=last_use_s)
    except OSError:  # there is none yet, or it cannot be read
        return
    for path in paths:
        if not (writer := writer_of(path)):
            yield path
        elif not is_process_alive(writer):
            remove_file(path)


def remove_file(path: Path) -> None:
    """Remove a file of the cache, if it can be: on a disk that became read-only it stays and is only read."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def write_file(
    path: Path, kind: bytes, header: Mapping[str, Any], content: tuple[bytes | bytearray | memoryview, ...], limit: int
) -> int:
    """Write a file and return its size, 0 if it has more than `limit` bytes or cannot be written: it is only a cache.
    It is written under another name and renamed, so that a kill leaves no incomplete one."""
    described = json.dumps(header).encode()
    pieces = (kind, _LENGTH.pack(len(described)), described, *content)
    n_bytes = sum(map(len, pieces))
    if n_bytes > limit:
        return 0
    return n_bytes if write_cache(path, pieces) else 0


def read_header(data: bytes, kind: bytes) -> tuple[dict[str, Any], int]:
    """Return the header in the begin of a file, and where its content begins. Raises ValueError for another kind or an
    incomplete header."""
    begin = len(kind) + _LENGTH.size
    end = begin + _LENGTH.unpack_from(data, len(kind))[0] if len(data) >= begin and data.startswith(kind) else 0
    if not begin < end <= len(data):
        raise ValueError("not a file of this version")
    try:
        header = json.loads(data[begin:end])
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(header, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one error for all that is damaged
    return header, end
