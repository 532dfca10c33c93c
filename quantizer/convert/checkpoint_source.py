"""A checkpoint folder as the source of a GGUF: everything but the weights is known from headers.

Names and settings become llama.cpp's by the architecture table; general.* metadata come from the model card and the
folder's name through gguf, as in llama.cpp's converter. config.json alone gives a header without vocabulary or names. A
draft head takes its vocabulary and a few settings from the model that it was made for. Of weights only single numbers
are read, which some models store in each layer and llama.cpp reads from the metadata.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture, find_architecture, needed_tensors
from quantizer.architectures.architecture import Hyperparameter
from quantizer.architectures.metadata_rows import rope_of
from quantizer.architectures.projectors import projectors_for
from quantizer.architectures.shapes import n_all_layers
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.checkpoint.safetensors import Checkpoint, read_checkpoint, read_object
from quantizer.convert.derived_tensors import MappedNumbers
from quantizer.convert.embedding_modules import (
    EmbeddingModules,
    is_named_ranker,
    is_yes_no_ranker,
    ranking_entry,
    read_embedding_modules,
    yes_no_ranker,
)
from quantizer.convert.source_model import FileTensor, SourceModel, SourceTensor, entries_of
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.header import Entry, Header, OutputTensor, encode_entry, encode_header, file_bytes, planned_header
from quantizer.gguf.hyperparameters import hyperparameter, hyperparameter_faults
from quantizer.gguf.sampling_keys import (
    GENERATION_CONFIG,
    NOTHING_STATED,
    StatedSampling,
    sampling_entries,
    sampling_of_config,
)
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.mix.type_rules import ModelShape, allows_quantization
from quantizer.system.errors import UsageError
from quantizer.tokenizers import read_vocabulary, vocabulary_entries
from quantizer.write.dtype_conversion import to_float32


def open_checkpoint(
    folder: Path, pending: Mapping[str, PendingFile] = NO_PENDING, base: Path | None = None
) -> SourceModel:
    """Read the headers of a Hugging Face checkpoint and return llama.cpp's form of the model. Files that are `pending`
    may still be missing; `base` is the model that a draft head is for. Raises CheckpointError with what cannot be
    converted, UsageError for a head without a `base` and for another model with one."""
    checkpoint = unpack_checkpoint(read_checkpoint(folder, pending))
    architecture, config = find_architecture(checkpoint.config, checkpoint.tensors)
    if base and not architecture.is_draft_head:
        raise UsageError(f"{folder.name} is neither an adapter nor a draft head, which --base is for.", "Omit --base.")
    target = read_target(base) if architecture.is_draft_head else None
    modules = EmbeddingModules()
    more: Mapping[str, SourceTensor] = {}
    words: Sequence[str]
    vocabulary: Iterable[Entry]
    if target:
        config = target.config_of(config)
        words, vocabulary = target.tokens, target.vocabulary_of(config)
    else:
        own = read_vocabulary(folder, config)
        if is_yes_no_ranker(folder, config):
            architecture, own, more = yes_no_ranker(architecture, config, own, checkpoint.tensors)
        else:
            modules = read_embedding_modules(folder, config, architecture.dense_modules)
        words, vocabulary = [token.text for token in own.tokens], vocabulary_entries(own)
    tensors = {**map_tensors({**checkpoint.tensors, **modules.tensors}, config, architecture), **more}
    name, sampling = folder.resolve().name, _stated_sampling(folder)
    of_modules = (Hyperparameter(key, "u32", number) for key, number in modules.numbers.items())
    rows = {row.key: row for row in (*of_modules, *architecture.hyperparameters)}  # the table's own have priority
    return SourceModel(
        name,
        (
            *general_entries(name, folder, architecture.gguf_name, tensors.values(), set(words)),
            *sampling_entries(sampling),
            *_hyperparameter_entries(architecture, config, rows.values()),
            *vocabulary,
            *layer_number_entries(checkpoint.tensors, config, architecture),
            *(
                encode_entry(key, any(stored.startswith(beginning) for stored in checkpoint.tensors), "bool")
                for key, beginning in architecture.metadata_of_tensors.flags.items()
            ),
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
        warnings=(
            *architecture.approximations(config),
            *_unknown_towers(checkpoint, architecture),
            *(f"A sampling option is left out: {what}." for what in sampling.ignored),
        ),
        identities=tuple(f"{name} {file.identity}" for name, file in pending.items()),
    )


def _stated_sampling(folder: Path) -> StatedSampling:
    path = folder / GENERATION_CONFIG
    return sampling_of_config(read_object(path)) if path.exists() else NOTHING_STATED


def _unknown_towers(checkpoint: Checkpoint, architecture: Architecture) -> Iterator[str]:
    """Warn of a part that sees or hears and cannot be converted."""
    if not projectors_for(checkpoint.config) and any(
        name.removeprefix("model.").startswith(architecture.names.skipped_modules) for name in checkpoint.tensors
    ):
        yield (f"The vision or audio part of {architecture.hf_classes[-1]} cannot be converted yet: text only.")


def _shape(config: Config, architecture: Architecture) -> ModelShape:
    n_heads = config.optional_integer("num_attention_heads") or 0
    n_kv_heads = config.optional_integer("num_key_value_heads") or n_heads
    if n_heads and n_heads % n_kv_heads:
        raise CheckpointError(
            f"{n_heads} attention heads cannot share {n_kv_heads} key-value heads.", "Check config.json."
        )
    n_experts = config.optional_integer("num_local_experts", "num_experts", "n_routed_experts") or 0
    return ModelShape(architecture.gguf_name, n_all_layers(config), n_heads, n_kv_heads, n_experts)


def config_header(settings: Mapping[str, Any], name: str) -> Header:
    """Return the header of the F16 GGUF that a checkpoint with this config.json, called `name`, would become. Raises
    CheckpointError for an architecture that cannot be converted and for settings that make no sense."""
    architecture, config = find_architecture(dict(settings))
    if is_named_ranker(name, config):
        architecture = ranking_entry(architecture)
    f16, f32 = tensor_type_named("F16"), tensor_type_named("F32")
    tensors = [
        OutputTensor(each, shape, f16 if allows_quantization(each, shape, architecture.gguf_name) else f32)
        for each, shape in needed_tensors(architecture, config).items()
    ]
    entries = _hyperparameter_entries(architecture, config, architecture.hyperparameters)
    head = encode_header([encode_entry("general.architecture", architecture.gguf_name, "str"), *entries], tensors)
    header = planned_header(head, file_bytes(head, tensors), Path(f"{name}.gguf"))
    for fault in hyperparameter_faults(header):  # as a conversion would find
        raise CheckpointError(f"{name} cannot be converted: {fault}.", "Download the checkpoint again.")
    return header


def _hyperparameter_entries(
    architecture: Architecture, config: Config, rows: Iterable[Hyperparameter]
) -> Iterator[Entry]:
    for row in rows:
        value = row.read(config)
        if value is not None:
            yield encode_entry(f"{architecture.gguf_name}.{row.key}", value, row.type_name)


_PLAIN = ("F32", "F16", "BF16")


def layer_number_entries(
    tensors: Mapping[str, FileTensor], config: Config, architecture: Architecture
) -> Iterator[Entry]:
    """Yield a row of metadata with the numbers of all layers for each of the architecture's `layer_numbers`. Raises
    CheckpointError naming a number that is missing or is none, ModelFileError when a file cannot be read."""
    for key, ending in architecture.metadata_of_tensors.layer_numbers.items():
        names = (f"model.layers.{i}{ending}" for i in range(config.integer("num_hidden_layers")))
        yield encode_entry(key, [_number(tensors, name) for name in names], "f32[]")


def _number(tensors: Mapping[str, FileTensor], name: str) -> float:
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"The checkpoint lacks {name}.", "Download the whole checkpoint.")
    if math.prod(tensor.shape) != 1 or tensor.stored.name not in _PLAIN:
        raise CheckpointError(f"The tensor {name} is not a single number.", "Download the checkpoint again.")
    value = float(to_float32(b"".join(tensor.slabs(1)), tensor.stored, 1).item())
    if not math.isfinite(value):
        raise CheckpointError(f"The tensor {name} is {value}.", "Download the checkpoint again.")
    return value


# What llama.cpp looks for in the name of a model, and then in its vocabulary, or else refuses the file
# (source: src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36).
_PHI = re.compile(r"phi-?3", re.IGNORECASE)
_PHI_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})


def general_entries(
    name: str,
    folder: Path,
    architecture: str,
    tensors: Collection[SourceTensor],
    words: Collection[str] = _PHI_TOKENS,
    kind: str = "model",
) -> Iterable[Entry]:
    """Yield entries about the file as a whole, a model whose tokens are `words` unless `kind` is another. A name that
    llama.cpp would take for Phi 3's, without its tokens, is spelt apart. Raises CheckpointError for a model card that
    is no YAML."""
    import gguf  # half a second, which a plan from config.json alone does not need

    type_names = {gguf.GGUFValueType.UINT32: "u32", gguf.GGUFValueType.STRING: "str", gguf.GGUFValueType.FLOAT32: "f32"}
    n_parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    try:
        card = gguf.Metadata.load(None, folder, None, n_parameters)
    except Exception as error:  # whatever YAML and a stranger's model card may raise
        raise CheckpointError(f"The model card of {name} cannot be read: {error}.", "Repair README.md.") from error
    for each in fields(card):  # gguf takes them from generation_config.json as they are
        if each.name.startswith("sampling_"):
            setattr(card, each.name, None)
    card.name = card.name or name
    if not _PHI_TOKENS.issubset(words):
        card.name = _PHI.sub("Phi 3", card.name)
    if not card.size_label:
        # the number of weights; with experts, their number times the weights of one of them with the rest
        stacks = [tensor.shape for tensor in tensors if "_exps." in tensor.name]
        n_shared, n_of_one = n_parameters - sum(map(math.prod, stacks)), sum(math.prod(shape[:-1]) for shape in stacks)
        n_experts = max((shape[-1] for shape in stacks), default=0)
        card.size_label = gguf.size_label(n_parameters, n_shared, n_of_one, n_experts)
    recorder = gguf.GGUFWriter(None, architecture)
    recorder.add_type(kind)
    card.set_gguf_meta_model(recorder)
    for key, entry in recorder.kv_data[0].items():
        type_name = "str[]" if entry.type == gguf.GGUFValueType.ARRAY else type_names[entry.type]
        yield encode_entry(key, entry.value, type_name)


_VOCABULARY, _MASK = "tokenizer.", "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """A model that is drafted for: its `settings`, its vocabulary as metadata and its tokens' texts, and its files."""

    settings: Mapping[str, Any]
    vocabulary: tuple[Entry, ...]
    tokens: tuple[str, ...]
    inputs: tuple[Path, ...]

    def config_of(self, head: Config) -> Config:
        """Return the config of a head of this model. Raises CheckpointError when their vocabularies differ in size."""
        if head.integer("vocab_size") != len(self.tokens):
            raise CheckpointError(
                f"The draft head has {head.integer('vocab_size')} tokens, but the model has {len(self.tokens)}.",
                "Name the model that the head was made for.",
            )
        return Config({**head.values, "target": dict(self.settings)})

    def vocabulary_of(self, head: Config) -> Iterator[Entry]:
        """Yield the vocabulary's metadata, with the head's own mask token."""
        mask = head.optional_integer("mask_token_id")
        yield from (entry for entry in self.vocabulary if mask is None or entry.key != _MASK)
        if mask is not None:
            yield encode_entry(_MASK, mask, "u32")


def read_target(path: Path | None) -> DraftTarget:
    """Read a checkpoint's folder or the header of a GGUF. Raises UserError with what is missing or wrong."""
    if path is None:
        raise UsageError(
            "A draft head takes its vocabulary from the model that it drafts for.",
            "Name that model's folder or GGUF with --base.",
        )
    if path.is_dir():
        architecture, config = find_architecture(read_object(path / "config.json"))
        if architecture.is_draft_head:
            raise UsageError(f"{path.name} is a draft head too.", "Name the model that it drafts for with --base.")
        own = read_vocabulary(path, config)
        settings = {
            "num_hidden_layers": config.integer("num_hidden_layers"),
            "hidden_size": config.integer("hidden_size"),
            "has_rotation_sections": "mrope_section" in rope_of(config).values,
        }
        words = tuple(token.text for token in own.tokens)
        return DraftTarget(settings, tuple(vocabulary_entries(own)), words, files_of(path))
    if not path.is_file():
        raise UsageError(f"There is no model {path}.", "Name the model's folder or GGUF with --base.")
    header = validate_gguf(path)
    settings = {
        "num_hidden_layers": hyperparameter(header, "block_count") - hyperparameter(header, "nextn_predict_layers"),
        "hidden_size": hyperparameter(header, "embedding_length"),
        "has_rotation_sections": f"{header.architecture}.rope.dimension_sections" in header.fields,
    }
    vocabulary = tuple(entry for entry in entries_of(header) if entry.key.startswith(_VOCABULARY))
    words = tuple(text.decode("utf-8", "replace") for text in header.strings("tokenizer.ggml.tokens"))
    return DraftTarget(settings, vocabulary, words, (path,))


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return the files of a checkpoint, which no output may replace."""
    return tuple(file for file in folder.iterdir() if file.is_file() and file.suffix != ".gguf")
