"""Validation of GGUF files before a native loader reads them.

A file whose counts, vocabulary or hyperparameters would abort llama.cpp, and with it the process that loads it, is
refused with a sentence; so is a file that is no model. What llama.cpp refuses cleanly by itself is left to it, unless
one of our own readers refuses it too: what passes here, all of them take for a model.

Source: the assertions of llama.cpp src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36. Special ids out of range
are no fault where llama.cpp falls back to its defaults: honest files have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantizer.gguf.file_names import MAX_SHARDS, shard_index, shard_path
from quantizer.gguf.gguf_reader import ModelFileError, invalid_gguf
from quantizer.gguf.header import Header, TensorInfo, read_header
from quantizer.gguf.hyperparameters import hyperparameter_faults
from quantizer.gguf.tensor_types import INTERLEAVED_ROWS, TENSOR_TYPES, WEIGHT_TYPES
from quantizer.gguf.vocabulary_validation import vocabulary_faults

# Integer tensors that models have: an expert routing table, a draft model's map of tokens.
_INTEGER_TENSORS = re.compile(r"(\.ffn_gate_tid2eid\.weight|^d2t(\.weight)?)$")
# One expert of a layer, as files from before April 2024 have them.
SEPARATE_EXPERT = re.compile(r"(?P<kind>blk\.\d{1,6}\.ffn_(gate|down|up))\.(?P<number>\d{1,6})\.weight")
# Tensors that are added to or multiplied with activations; the CPU backend aborts unless they are F32.
_ELEMENTWISE = re.compile(r"(_norm\.weight|\.bias)$")


def validate_gguf(path: Path) -> Header:
    """Read and check the header at `path` and those of its further shards.
    Returns the header of `path` itself. Raises ModelFileError with the first fault."""
    header = read_header(path)
    validate_header(header)
    check_weights(header, [read_header(shard) for shard in shard_paths(header)[1:]])
    return header


def validate_header(header: Header) -> None:
    """Raise ModelFileError when llama.cpp could not survive this file, or it is an importance matrix."""
    if header.text("general.type") == _MATRIX:  # it has none of a model's fields
        _refuse(header, _MATRIX)
    for fault in header_faults(header):
        raise invalid_gguf(header.path.name, fault)


def header_faults(header: Header) -> Iterator[str]:
    """Yield every reason why llama.cpp could not survive this file."""
    if not header.architecture:
        yield "it does not name its architecture"
    elif not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", header.architecture):
        yield f"its architecture name {header.architecture[:64]!r} is invalid"
    for check in (hyperparameter_faults, vocabulary_faults, _tensor_faults):
        yield from check(header)


def check_weights(header: Header, later: Sequence[Header]) -> None:
    """Raise ModelFileError for a model without tensors; `later` are its other files, and the first may have none."""
    if not any(part.tensors for part in (header, *later)):
        raise ModelFileError(f"{header.path.name} contains no weights.", "Name a model file.")


def shard_paths(header: Header) -> list[Path]:
    """Return all files of the model, this one first; one path for a model that is not split.
    Raises ModelFileError when the file is a later shard, or is not named as split files are."""
    count = header.integer("split.count") or 1
    if count <= 1:
        return [header.path]
    named = shard_index(header.path.name)
    if count > MAX_SHARDS or named is None or named[1] != count:
        raise invalid_gguf(header.path.name, f"it claims {count} shards, which its name contradicts")
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


def _tensor_faults(header: Header) -> Iterator[str]:
    for tensor in header.tensors:
        stored = TENSOR_TYPES[tensor.type_id].name
        if stored not in WEIGHT_TYPES and stored not in INTERLEAVED_ROWS and not _INTEGER_TENSORS.search(tensor.name):
            yield f"the tensor {tensor.name!r} has a type that is not for weights"
        if stored != "F32" and _ELEMENTWISE.search(tensor.name):
            yield f"the tensor {tensor.name!r} is not in F32"
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if embedding is None or tokens is None or len(embedding.shape) < 2:
        return
    n_tokens = header.array_ref("tokenizer.ggml.tokens").count
    if embedding.shape[1] != n_tokens:
        yield f"its vocabulary has {n_tokens} tokens and its embedding {embedding.shape[1]}"


_MATRIX = "imatrix"
_NO_MODELS = {
    _MATRIX: ("an importance matrix", "Give it to `localllm quantize` with --imatrix."),
    "adapter": ("a LoRA adapter", "Name the model that it is for, and the adapter with --lora."),
    "controlvector": ("a control vector", "Name the model that it is for, and the vector with --control-vector."),
    "mmproj": ("a multimodal projector", "Name the model file beside it."),
}
_ARCHITECTURES = {"clip": "mmproj", "controlvector": "controlvector"}  # in older files
_NO_TOKENIZER = ("", "no_vocab", "none")


def is_model(header: Header) -> bool:
    """Whether the file holds a model, and not an adapter, a projector or another part beside one."""
    return _kind(header) not in _NO_MODELS


def _kind(header: Header) -> str:
    return _ARCHITECTURES.get(header.architecture, header.text("general.type"))


def check_answers(header: Header, *, needs_tokenizer: bool) -> None:
    """Raise ModelFileError for a file that cannot generate text; the message names what it is."""
    kind = _kind(header)
    if kind in _NO_MODELS:
        _refuse(header, kind)
    for tensor in header.tensors:  # what an older program wrote must be written anew
        stored = TENSOR_TYPES[tensor.type_id].name
        is_separate = SEPARATE_EXPERT.fullmatch(tensor.name)
        if stored in INTERLEAVED_ROWS or is_separate:
            what = "stores its experts separately" if is_separate else f"is in {stored}"
            same = "the type that it has" if is_separate else "Q4_0, which loses nothing"
            raise ModelFileError(
                f"{header.path.name} {what}, which llama.cpp no longer reads.",
                f"Write it again with `localllm quantize` as {same}.",
            )
    if needs_tokenizer and header.text("tokenizer.ggml.model") in _NO_TOKENIZER:
        raise ModelFileError(
            f"{header.path.name} has no tokenizer, so it cannot process text.",
            "Convert it again from a checkpoint with its tokenizer's files, or download another.",
        )


def _refuse(header: Header, kind: str) -> None:
    what, remedy = _NO_MODELS[kind]
    raise ModelFileError(f"{header.path.name} is {what}, not a model.", remedy)
