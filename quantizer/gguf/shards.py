"""Models split into several files: their names, and which tensors go where.

Owns llama.cpp's split format (source: llama.cpp src/llama.cpp, llama_split_path, and tools/gguf-split); independent of
what tensors hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from quantizer.gguf.header_encoder import Entry, OutputTensor, encode_entry, encode_header, padding
from quantizer.system.errors import UsageError

MAX_SHARDS = 1024
_NAME = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")


def shard_path(output: Path, index: int, count: int) -> Path:
    """Return the path of the shard `index` (from 0) of `count` of the model that would be `output` in one file."""
    stem = unsplit_name(output.name).removesuffix(".gguf")
    return output if count == 1 else output.with_name(f"{stem}-{index + 1:05d}-of-{count:05d}.gguf")


def shard_index(name: str) -> tuple[int, int] | None:
    """Return (index from 0, count) of a shard's file name, None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match["index"]) - 1, int(match["count"])) if match else None


def unsplit_name(name: str) -> str:
    """Return the file name of the whole model that the shard `name` belongs to; any other name unchanged."""
    match = _NAME.fullmatch(name)
    return f"{match['stem']}.gguf" if match else name


def shard_entries(index: int, count: int, n_tensors: int) -> list[Entry]:
    """Return the entries that mark the shard `index` of `count`, of a model of `n_tensors`; none for one file."""
    if count == 1:
        return []
    return [
        encode_entry("split.no", index, "u16"),
        encode_entry("split.count", count, "u16"),
        encode_entry("split.tensors.count", n_tensors, "i32"),
    ]


def split_by_bytes(entries: Sequence[Entry], tensors: Sequence[OutputTensor], max_bytes: int) -> list[int]:
    """Return how many tensors each file gets so that none is larger than `max_bytes`.

    A tensor larger than that has a file to itself. Raises UsageError when there would be more files than a model has.
    """
    marks = shard_entries(0, MAX_SHARDS, len(tensors))
    sizes = [tensor.n_bytes + padding(tensor.n_bytes) for tensor in tensors]
    table_bytes = len(encode_header(marks, tensors))
    room = max_bytes - len(encode_header([*entries, *marks], tensors))  # the first file has all the metadata
    counts = [0]
    for size in sizes:
        if size > room and counts[-1]:
            counts.append(0)
            room = max_bytes - table_bytes
        counts[-1] += 1
        room -= size
    if len(counts) > MAX_SHARDS:
        raise UsageError(f"That would make {len(counts)} files, more than {MAX_SHARDS}.", "Allow larger ones.")
    return counts
