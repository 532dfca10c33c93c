"""The names of a model's files: shards of a split model, draft heads (dspark-m.gguf, m-eagle3-Q8_0.gguf) and projectors
(mmproj-m-F16.gguf); and which tensors go into which shard.

Source: `llama_split_path` in src/llama.cpp, tools/gguf-split and `gguf_filename_is_model` in common/download.cpp of
llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from quantizer.gguf.header import Entry, OutputTensor, encode_entry, encode_header, padding
from quantizer.gguf.tensor_types import FILE_TYPES
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
    """Return how many tensors each file gets so that none is larger than `max_bytes`. A tensor larger than that has a
    file to itself. Raises UsageError when there would be more files than a model has."""
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


PROJECTOR_MARK = "mmproj"
# what the projector of a model may be written as, the usual type first
PROJECTOR_TYPES = ("F16", "Q8_0", "F32")
FOUND_TYPES = ("F16", "BF16", "Q8_0", "F32")  # of several projectors that are there the first
NO_PROJECTOR = "none"  # as a choice of one

HEAD_MARKS = ("dspark-", "dflash2-", "dflash-", "eagle3-")  # those that draft a block in one pass first
_MTP = "mtp-"  # MTP layers in a file of their own, or Gemma 4's assistant: many models have the layers themselves


def is_sidecar(name: str) -> bool:
    """Return whether the file `name` is no model of its own where it lies beside one. Capitals make no difference but
    for layers that predict: `-MTP-` is in the names of whole models that have them."""
    return _MTP in name or any(mark in name.lower() for mark in (*HEAD_MARKS, PROJECTOR_MARK))


def head_rank(name: str) -> int | None:
    """Return the place of the head `name` among heads of one model, the best first; None for what cannot draft."""
    low = name.lower()
    marks = (index for index, mark in enumerate(HEAD_MARKS) if mark in low and low.endswith(".gguf"))
    return None if _MTP in name else next(marks, None)


def may_hold_layers(name: str) -> bool:
    """Return whether the file `name` has the prediction layers of the model beside it, by its name."""
    return _MTP in name and name.endswith(".gguf")


_TYPE_ENDING = re.compile(rf"[-_.](UD-)?({'|'.join(FILE_TYPES)})$", re.IGNORECASE)
_NAMELESS = re.compile(r"(ggml|gguf|model|vision|audio|[-_.])*", re.IGNORECASE)  # what names no model


def projector_name(model: str, type_name: str) -> str:
    """Return the name of the projector of `type_name`, if known, beside the file `model`, whose own type it leaves
    out."""
    parts = filter(None, (PROJECTOR_MARK, without_type(PurePath(model).stem), type_name))
    return f"{'-'.join(parts)}.gguf"


def without_type(stem: str) -> str:
    """Return the stem of a file's name without the type at its end."""
    return _TYPE_ENDING.sub("", stem)


def is_projector(name: str) -> bool:
    """Return whether the file `name` is called a projector, in capitals too."""
    return PROJECTOR_MARK in name.lower() and name.lower().endswith(".gguf")


def projector_owner(name: str) -> str:
    """Return the model that the projector `name` names, in lower case; empty for mmproj-F16.gguf and the like."""
    stem = without_type(PurePath(name).stem).lower().replace(PROJECTOR_MARK, "")
    return "" if _NAMELESS.fullmatch(stem) else without_type(stem.strip("-_."))


def names_model(owner: str, model: str) -> bool:
    """Return whether the `owner` of a projector is the model whose file has the stem `model`, or begins like it."""
    stem = without_type(model).lower()
    return bool(owner) and (stem.startswith(owner) or owner.startswith(stem))
