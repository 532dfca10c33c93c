"""Model files of real size for the test hub: sparse, with vocabularies as large as published ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from offload.footprint.model import PlannedModel
from quantizer.gguf.file_names import shard_entries, shard_path
from quantizer.gguf.header import Entry, Header, OutputTensor, encode_entry, encode_header, file_bytes
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from tests.app.library.hub_repos import HubFile
from tests.offload.model_outlines import header_of

__all__ = ["hub_file", "sparse_model", "sparse_shards"]

_MEAN_TOKEN_BYTES = 6
_MERGES_PER_TOKEN = 2  # Llama 3: 280,147 for 128,256


def sparse_model(path: Path, outline: str, file_type: str, *, has_merges: bool = False) -> Path:
    """Write the model `outline` at `path`, with a vocabulary as long as its embedding, and no byte of its weights."""
    header, tensors = _parts(outline, file_type)
    return _written(path, [*_entries(header), *_vocabulary(_n_tokens(tensors), has_merges=has_merges)], tensors)


def sparse_shards(path: Path, outline: str, file_type: str, n_shards: int) -> list[Path]:
    """Write the same in `n_shards` files that are named after `path`; the first has all the metadata."""
    header, tensors = _parts(outline, file_type)
    entries = [*_entries(header), *_vocabulary(_n_tokens(tensors), has_merges=False)]
    each = -(-len(tensors) // n_shards)
    return [
        _written(
            shard_path(path, index, n_shards),
            [*(entries if index == 0 else ()), *shard_entries(index, n_shards, len(tensors))],
            tensors[index * each : (index + 1) * each],
        )
        for index in range(n_shards)
    ]


def hub_file(path: Path) -> HubFile:
    """The file as the hub has it, with a made-up sha256: hashing gigabytes of nothing takes seconds."""
    file = HubFile(path.name, path)
    file.__dict__["sha256"] = f"{path.name.encode().hex():0>64}"[-64:]
    return file


def _parts(outline: str, file_type: str) -> tuple[Header, list[OutputTensor]]:
    header = header_of(outline)
    model = PlannedModel(header, header.tensors).quantized(file_type_named(file_type))
    return header, [OutputTensor(tensor.name, tensor.shape, TENSOR_TYPES[tensor.type_id]) for tensor in model.tensors]


def _entries(header: Header) -> Iterator[Entry]:
    for key, field in header.fields.items():
        yield Entry(key, field.type_id, header.source.read(field.start, field.stop))


def _n_tokens(tensors: list[OutputTensor]) -> int:
    return next(tensor.shape[1] for tensor in tensors if tensor.name == "token_embd.weight")


def _vocabulary(n_tokens: int, *, has_merges: bool) -> Iterator[Entry]:
    yield encode_entry("tokenizer.ggml.tokens", [f"{i:0{_MEAN_TOKEN_BYTES}d}" for i in range(n_tokens)], "str[]")
    yield encode_entry("tokenizer.ggml.token_type", [1] * n_tokens, "i32[]")
    if has_merges:
        merges = [f"{i:0{_MEAN_TOKEN_BYTES}d} x" for i in range(_MERGES_PER_TOKEN * n_tokens)]
        yield encode_entry("tokenizer.ggml.merges", merges, "str[]")
    else:
        yield encode_entry("tokenizer.ggml.scores", [0.0] * n_tokens, "f32[]")


def _written(path: Path, entries: list[Entry], tensors: list[OutputTensor]) -> Path:
    head = encode_header(entries, tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(file_bytes(head, tensors))
    return path
