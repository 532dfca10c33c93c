"""The one gate that every GGUF passes before a native loader sees it.

Owns the verdict: a file whose counts, vocabulary or hyperparameters would abort llama.cpp (and with it the process that
loads it) is refused here with a sentence. What llama.cpp refuses cleanly by itself is left to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from quantizer.errors import ModelFileError
from quantizer.file_kind import check_no_matrix
from quantizer.header import Header, TensorInfo, read_header
from quantizer.hyperparameters import hyperparameter_faults
from quantizer.shards import MAX_SHARDS, shard_index, shard_path
from quantizer.tensor_types import tensor_type_named
from quantizer.vocabulary import vocabulary_faults
from quantizer.wire import broken

__all__ = ["admit", "check", "shard_paths", "tensors_of"]

_WEIGHT_TYPES_REFUSED = {tensor_type_named(name).type_id for name in ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")}
# The integer tensors there are: an expert routing table, a draft model's map of tokens.
_INTEGER_TENSORS = re.compile(r"(\.ffn_gate_tid2eid\.weight|^d2t(\.weight)?)$")
# What is added to or multiplied with activations; the CPU backend aborts unless it is F32.
_ELEMENTWISE = re.compile(r"(_norm\.weight|\.bias)$")
_F32 = tensor_type_named("F32").type_id


def admit(path: Path) -> Header:
    """Read the header at `path`, and those of its further shards, and check them.

    Returns the header of `path` itself. Raises ModelFileError naming the first fault.
    """
    header = read_header(path)
    check(header)
    for shard in shard_paths(header)[1:]:
        read_header(shard)
    return header


def check(header: Header) -> None:
    """Raise ModelFileError when llama.cpp could not survive this file."""
    check_no_matrix(header)
    for fault in _faults(header):
        raise broken(header.path.name, fault)


def shard_paths(header: Header) -> list[Path]:
    """All files of the model, this one first; one path for a model that is not split.

    Raises ModelFileError when the file is a later shard, or is not named as split files are.
    """
    count = header.integer("split.count") or 1
    if count <= 1:
        return [header.path]
    named = shard_index(header.path.name)
    if count > MAX_SHARDS or named is None or named[1] != count:
        raise broken(header.path.name, f"it claims {count} shards, which its name does not bear out")
    paths = [shard_path(header.path, index, count) for index in range(count)]
    if header.integer("split.no") != 0:
        raise ModelFileError(
            f"{header.path.name} is a later part of a split model.", f"Name its first part, {paths[0].name}."
        )
    return paths


def tensors_of(header: Header) -> tuple[TensorInfo, ...]:
    """Return the tensors of all files of the model whose first file has `header`. Raises as `shard_paths` does."""
    later = (tensor for path in shard_paths(header)[1:] for tensor in read_header(path).tensors)
    return (*header.tensors, *later)


def _faults(header: Header) -> Iterator[str]:
    yield from _identity_faults(header)
    yield from hyperparameter_faults(header)
    yield from vocabulary_faults(header)
    yield from _tensor_faults(header)


def _identity_faults(header: Header) -> Iterator[str]:
    if not header.architecture:
        yield "it does not name its architecture"
    elif not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", header.architecture):
        yield f"its architecture {header.architecture[:64]!r} is not a name"


def _tensor_faults(header: Header) -> Iterator[str]:
    for tensor in header.tensors:
        if tensor.type_id in _WEIGHT_TYPES_REFUSED and not _INTEGER_TENSORS.search(tensor.name):
            yield f"the tensor {tensor.name!r} has a type that no weight has"
        if tensor.type_id != _F32 and _ELEMENTWISE.search(tensor.name):
            yield f"the tensor {tensor.name!r} is not in F32"
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if embedding is None or tokens is None or len(embedding.shape) < 2:
        return
    n_tokens = header.array_ref("tokenizer.ggml.tokens").count
    if embedding.shape[1] != n_tokens:
        yield f"its vocabulary has {n_tokens} tokens and its embedding {embedding.shape[1]}"
