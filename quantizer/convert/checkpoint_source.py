"""A checkpoint folder as the source of a GGUF: everything but the weights is known from headers.

Owns the mapping of a checkpoint's names and settings to llama.cpp's, by the architecture table. Nothing is written and
no weight is read: `quantizer.write.quantize` does both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from quantizer.architectures import Architecture, find_architecture
from quantizer.architectures.architecture import Hyperparameter
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import PendingFile
from quantizer.checkpoint.pooling import read_pooling
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.convert.config_header import hyperparameter_entries
from quantizer.convert.source_model import SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.errors import CheckpointError
from quantizer.gguf.header_encoder import Entry
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.recipe_rules import ModelShape
from quantizer.mix.tensor_categories import allows_quantization
from quantizer.tokenizers import TokenizerVocabulary, read_vocabulary, vocabulary_entries

__all__ = ["open_checkpoint"]


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
    return hyperparameter_entries(architecture, config, rows.values())
