"""A checkpoint folder as the source of a GGUF: everything but the weights is known from headers.

Owns the mapping of a checkpoint's names and settings to llama.cpp's, by the architecture table; and the header that
config.json alone gives: shapes and hyperparameters, without vocabulary or names. Nothing is written and no weight is
read, but for single numbers of layers: `quantizer.write.quantize` does both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture, find_architecture, needed_tensors
from quantizer.architectures.architecture import Hyperparameter
from quantizer.architectures.prediction_layers import n_all_layers
from quantizer.architectures.projectors import projectors_for
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.checkpoint.safetensors import Checkpoint, read_checkpoint
from quantizer.convert.derived_tensors import MappedNumbers
from quantizer.convert.draft_target import files_of, read_target
from quantizer.convert.embedding_modules import EmbeddingModules, read_embedding_modules
from quantizer.convert.layer_numbers import layer_number_entries
from quantizer.convert.source_model import SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.convert.yes_no_ranker import is_named_ranker, is_yes_no_ranker, ranking_entry, yes_no_ranker
from quantizer.gguf.header import Header, planned_header
from quantizer.gguf.header_encoder import Entry, OutputTensor, encode_entry, encode_header, file_bytes
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.tensor_categories import allows_quantization
from quantizer.mix.type_rules import ModelShape
from quantizer.system.errors import UsageError
from quantizer.tokenizers import read_vocabulary, vocabulary_entries


def open_checkpoint(
    folder: Path, pending: Mapping[str, PendingFile] = NO_PENDING, base: Path | None = None
) -> SourceModel:
    """Read the headers of a Hugging Face checkpoint and return llama.cpp's form of the model.

    Files that are `pending` may still be missing; `base` is the model that a draft head is for. Raises CheckpointError
    with what cannot be converted, UsageError for a head without a `base` and for another model with one.
    """
    checkpoint = unpack_checkpoint(read_checkpoint(folder, pending))
    architecture, config = find_architecture(checkpoint.config, checkpoint.tensors)
    if base and not architecture.is_draft_head:
        raise UsageError(f"{folder.name} is no adapter and no draft head: --base is for those.", "Leave --base out.")
    target = read_target(base) if architecture.is_draft_head else None
    modules = EmbeddingModules()
    more: Mapping[str, SourceTensor] = {}
    if target:
        config, vocabulary = target.config_of(config), _Vocabulary(target.tokens, target.vocabulary_of(config))
    else:
        own = read_vocabulary(folder, config)
        if is_yes_no_ranker(folder, config):
            ranker = yes_no_ranker(architecture, config, own, checkpoint.tensors)
            architecture, own, more = ranker.architecture, ranker.vocabulary, ranker.tensors
        else:
            modules = read_embedding_modules(folder, config, architecture.dense_modules)
        vocabulary = _Vocabulary([token.text for token in own.tokens], vocabulary_entries(own))
    tensors = {**map_tensors({**checkpoint.tensors, **modules.tensors}, config, architecture), **more}
    name = folder.resolve().name
    return SourceModel(
        name,
        (
            *_entries(name, folder, config, architecture, vocabulary, modules, tensors.values()),
            *layer_number_entries(checkpoint.tensors, config, architecture),
            *_flag_entries(checkpoint.tensors, architecture),
        ),
        list(tensors.values()),
        _shape(config, architecture),
        {
            tensor.name: tensor_type_named("F32")
            for tensor in tensors.values()
            if not allows_quantization(tensor.name, tensor.shape, architecture.gguf_name)
            and not isinstance(tensor, MappedNumbers)
        },
        (*(file for file in files_of(folder) if file.name not in pending), *(target.inputs if target else ())),
        keeps_quantized=True,
        warnings=(*architecture.approximations(config), *_unknown_towers(checkpoint, architecture)),
        identities=tuple(f"{name} {file.identity}" for name, file in pending.items()),
    )


def _unknown_towers(checkpoint: Checkpoint, architecture: Architecture) -> Iterator[str]:
    """Warn of a part that sees or hears and cannot be converted."""
    if not projectors_for(checkpoint.config) and any(
        name.removeprefix("model.").startswith(architecture.skipped_modules) for name in checkpoint.tensors
    ):
        yield (
            f"The model will read text only: how {architecture.hf_classes[-1]} sees or hears cannot be converted yet."
        )


def _shape(config: Config, architecture: Architecture) -> ModelShape:
    n_heads = config.optional_integer("num_attention_heads") or 0
    n_kv_heads = config.optional_integer("num_key_value_heads") or n_heads
    if n_heads and n_heads % n_kv_heads:
        raise CheckpointError(f"{n_heads} attention heads cannot share {n_kv_heads}.", "Check config.json.")
    n_experts = config.optional_integer("num_local_experts", "num_experts", "n_routed_experts") or 0
    return ModelShape(architecture.gguf_name, n_all_layers(config), n_heads, n_kv_heads, n_experts)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The texts of all tokens, and everything about them as metadata."""

    tokens: Sequence[str]
    entries: Iterable[Entry]


def _flag_entries(tensors: Iterable[str], architecture: Architecture) -> Iterator[Entry]:
    for key, beginning in architecture.tensor_flags.items():
        yield encode_entry(key, any(name.startswith(beginning) for name in tensors), "bool")


def _entries(
    name: str,
    folder: Path,
    config: Config,
    architecture: Architecture,
    vocabulary: _Vocabulary,
    modules: EmbeddingModules,
    tensors: Collection[SourceTensor],
) -> Iterable[Entry]:
    from quantizer.convert.metadata import general_entries  # reads the model card through gguf, slow to import

    of_modules = (_constant(key, number) for key, number in modules.numbers.items())
    rows = {row.key: row for row in (*of_modules, *architecture.hyperparameters)}  # the table's own have priority
    yield from general_entries(name, folder, architecture.gguf_name, tensors, set(vocabulary.tokens))
    yield from _hyperparameter_entries(architecture, config, rows.values())
    yield from vocabulary.entries


def _constant(key: str, number: int) -> Hyperparameter:
    return Hyperparameter(key, "u32", lambda _config: number)


def config_header(settings: Mapping[str, Any], name: str) -> Header:
    """Return the header of the F16 GGUF that a checkpoint with this config.json, called `name`, would become.

    Raises CheckpointError for an architecture that cannot be converted and for settings that make no sense.
    """
    architecture, config = find_architecture(dict(settings))
    if is_named_ranker(name, config):
        architecture = ranking_entry(architecture)
    tensors = [
        _tensor(tensor_name, shape, architecture.gguf_name)
        for tensor_name, shape in needed_tensors(architecture, config).items()
    ]
    entries = _hyperparameter_entries(architecture, config, architecture.hyperparameters)
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
