"""A checkpoint folder as the source of a GGUF: everything but the weights is known from headers.

Owns the mapping of a checkpoint's names and settings to llama.cpp's, by the architecture table, and the header that
config.json alone gives: shapes and hyperparameters, without vocabulary or names. Nothing is written and no weight is
read: `quantizer.write.quantize` does both.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture, find_architecture, needed_tensors
from quantizer.architectures.architecture import Hyperparameter
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import PendingFile
from quantizer.checkpoint.pooling import read_pooling
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.convert.source_model import SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.errors import CheckpointError
from quantizer.gguf.header import Header, planned_header
from quantizer.gguf.header_encoder import Entry, OutputTensor, encode_entry, encode_header, file_bytes
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.tensor_categories import allows_quantization
from quantizer.mix.type_rules import ModelShape
from quantizer.tokenizers import TokenizerVocabulary, read_vocabulary, vocabulary_entries

__all__ = ["config_header", "open_checkpoint"]

_NOTHING: Mapping[str, PendingFile] = {}


def open_checkpoint(folder: Path, pending: Mapping[str, PendingFile] = _NOTHING) -> SourceModel:
    """Read the headers of a Hugging Face checkpoint and return llama.cpp's form of the model.

    Files that are `pending` may still be missing. Raises CheckpointError with what cannot be converted.
    """
    checkpoint = unpack_checkpoint(read_checkpoint(folder, pending))
    architecture, config = find_architecture(checkpoint.config)
    vocabulary = read_vocabulary(folder, config)
    tensors = map_tensors(checkpoint.tensors, config, architecture)
    name = folder.resolve().name
    return SourceModel(
        name,
        tuple(_entries(name, folder, config, architecture, vocabulary, tensors.values())),
        list(tensors.values()),
        _shape(config, architecture),
        {
            tensor.name: tensor_type_named("F32")
            for tensor in tensors.values()
            if not allows_quantization(tensor.name, tensor.shape, architecture.gguf_name)
        },
        tuple(path for path in folder.iterdir() if _is_input(path) and path.name not in pending),
        keeps_quantized=True,
        warnings=architecture.approximations(config),
        identities=tuple(f"{name} {file.identity}" for name, file in pending.items()),
    )


def _is_input(path: Path) -> bool:
    return path.is_file() and path.suffix != ".gguf"


def _shape(config: Config, architecture: Architecture) -> ModelShape:
    n_heads = config.optional_integer("num_attention_heads") or 0
    n_kv_heads = config.optional_integer("num_key_value_heads") or n_heads
    if n_heads and n_heads % n_kv_heads:
        raise CheckpointError(f"{n_heads} attention heads cannot share {n_kv_heads}.", "Check config.json.")
    n_experts = config.optional_integer("num_local_experts", "num_experts", "n_routed_experts") or 0
    return ModelShape(architecture.gguf_name, config.integer("num_hidden_layers"), n_heads, n_kv_heads, n_experts)


def _entries(
    name: str,
    folder: Path,
    config: Config,
    architecture: Architecture,
    vocabulary: TokenizerVocabulary,
    tensors: Collection[SourceTensor],
) -> Iterable[Entry]:
    from quantizer.convert.metadata import general_entries  # reads the model card through gguf, slow to import

    words = {token.text for token in vocabulary.tokens}
    yield from general_entries(name, folder, architecture.gguf_name, tensors, words)
    yield from _hyperparameters(folder, config, architecture)
    yield from vocabulary_entries(vocabulary)


def _hyperparameters(folder: Path, config: Config, architecture: Architecture) -> Iterator[Entry]:
    """Yield the rows of the table, and the pooling where only the folder has it."""
    pooling = Hyperparameter("pooling_type", "u32", lambda _config: read_pooling(folder))
    rows = {row.key: row for row in (pooling, *architecture.hyperparameters)}
    return _hyperparameter_entries(architecture, config, rows.values())


def config_header(settings: Mapping[str, Any], name: str) -> Header:
    """Return the header of the F16 GGUF that a checkpoint with this config.json, called `name`, would become.

    Raises CheckpointError for an architecture that cannot be converted and for settings that make no sense.
    """
    architecture, config = find_architecture(dict(settings))
    tensors = [
        _tensor(tensor_name, shape, architecture.gguf_name)
        for tensor_name, shape in needed_tensors(architecture, config).items()
    ]
    try:
        entries = list(_hyperparameter_entries(architecture, config, architecture.hyperparameters))
    except (struct.error, OverflowError) as error:
        raise CheckpointError(
            f"config.json of {name} has a number that no GGUF holds.", "Check config.json."
        ) from error
    head = encode_header([encode_entry("general.architecture", architecture.gguf_name, "str"), *entries], tensors)
    return planned_header(head, file_bytes(head, tensors), Path(f"{name}.gguf"))


def _hyperparameter_entries(
    architecture: Architecture, config: Config, rows: Iterable[Hyperparameter]
) -> Iterator[Entry]:
    """Yield the entries of `rows` for `config`, without those that have no value."""
    for row in rows:
        value = row.read(config)
        if value is not None:
            yield encode_entry(f"{architecture.gguf_name}.{row.key}", value, row.type_name)


def _tensor(name: str, shape: tuple[int, ...], architecture: str) -> OutputTensor:
    kind = "F16" if allows_quantization(name, shape, architecture) else "F32"
    return OutputTensor(name, shape, tensor_type_named(kind))
