"""A LoRA adapter as PEFT saves it, as the source of a GGUF adapter; and the model that it is for.

Owns which adapters can be converted: those whose pairs of matrices are everything that they change. Names and row
orders are those of the base model, found by `quantizer.convert.tensor_mapping` for either matrix of a pair. The base
model's config.json, or its GGUF header, is enough: no weight of it is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantizer.architectures import ARCHITECTURES, Architecture, find_architecture, needed_tensors
from quantizer.architectures.architecture import RequiredTensors
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.safetensors import as_object, read_json, read_weights
from quantizer.convert.derived_tensors import TransposedTensor, whole_tensor
from quantizer.convert.source_model import FileTensor, RenamedTensor, SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.adapters import fits, is_output_too
from quantizer.gguf.header import Entry, encode_entry
from quantizer.gguf.tensor_types import FileType
from quantizer.gguf.validation import tensors_of, validate_gguf
from quantizer.mix.type_rules import ModelShape
from quantizer.system.errors import UsageError

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_EMBEDDING = "token_embd.weight"
# ending of a stored name -> which matrix of a pair it is
_SIDES = {".lora_A.weight": "a", ".lora_B.weight": "b", ".lora_embedding_A": "a", ".lora_embedding_B": "b"}
_VOCABULARY_COPIES = ("embed_tokens.base_layer.weight", "lm_head.base_layer.weight")
# settings that change what the matrices mean, or change more than them, and what that is called
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules beside its matrices (modules_to_save)",
    "lora_bias": "its own biases (lora_bias)",
    "alpha_pattern": "different alphas per module (alpha_pattern)",
    "fan_in_fan_out": "transposed matrices (fan_in_fan_out)",
    "layer_replication": "repeated layers (layer_replication)",
    "target_parameters": "matrices for whole parameters (target_parameters)",
    "trainable_token_indices": "its own tokens (trainable_token_indices)",
    "alora_invocation_tokens": "tokens that activate it (aLoRA)",
}


def is_adapter(source: Path) -> bool:
    return (source / _CONFIG).is_file()


def open_adapter(folder: Path, base: Path | None, file_type: FileType) -> SourceModel:
    """Read the headers of a PEFT adapter and return llama.cpp's form of it. Its matrices become `file_type`, which must
    be a plain one. `base` is the model it was made for, a folder or a GGUF; without it, the one that the adapter names,
    if that is a local folder. Raises UserError with the obstacle."""
    if file_type.base.is_quantized:
        raise UsageError(f"An adapter cannot be quantized to {file_type.name}.", "Choose F16, BF16 or F32.")
    settings = _settings(folder)
    if base is None:
        name = settings.text("base_model_name_or_path") or ""
        if not name or "\0" in name or not Path(name).is_dir():
            cause = f"The adapter is for {name[:128] or 'an unnamed model'}, which is not a local folder."
            raise UsageError(cause, "Name the model's folder or GGUF with --base.")
        base = Path(name)
    model = _open_base(base)
    tensors = list(_pairs(folder, model))
    return SourceModel(
        folder.resolve().name,
        tuple(_entries(folder, settings, model.architecture)),
        tensors,
        ModelShape(model.architecture.gguf_name, model.config.integer("num_hidden_layers")),
        {tensor.name: file_type.base for tensor in tensors},
        (folder / _CONFIG, folder / _WEIGHTS, model.file),
    )


def _settings(folder: Path) -> Config:
    settings = Config(as_object(read_json(folder / _CONFIG), _CONFIG, "Download the adapter again."))
    kind = settings.text("peft_type") or "none"
    if kind != "LORA":
        raise _unsupported(f"is a {kind[:32]} adapter, not a LoRA")
    for key, what in _UNSUPPORTED.items():
        if settings.values.get(key):
            raise _unsupported(f"has {what}")
    if settings.values.get("bias") not in (None, "none"):
        raise _unsupported("changes biases")
    if settings.flag("use_rslora") and settings.values.get("rank_pattern"):
        raise _unsupported("combines use_rslora with rank_pattern")
    return settings


def _pairs(folder: Path, base: _BaseModel) -> Iterator[SourceTensor]:
    """Yield both matrices for every weight that the adapter changes, under llama.cpp's names."""
    sides = _sides(folder, base)
    inputs, outputs = (_placed(sides[side], side, base) for side in "ab")
    for name, output in outputs.items():
        if name not in base.shapes:
            raise _unsupported(f"changes {name}, which its base model does not have")
        if re.sub(r"^blk\.\d+\.", "", name) in base.architecture.unadapted:
            raise _unsupported(f"changes {name}, to which llama.cpp applies no adapters")
        if is_output_too(name, base.shapes):
            raise _unsupported("changes the embedding, which is the output of its base model too")
        a = TransposedTensor(inputs[name], name) if name == _EMBEDDING else inputs[name]
        if not fits(name, base.shapes[name], a.shape, output.shape):
            raise _unsupported(f"has matrices for {name} of other shapes than its base model")
        yield RenamedTensor(a, f"{name}.lora_a")
        yield RenamedTensor(output, f"{name}.lora_b")


def _sides(folder: Path, base: _BaseModel) -> dict[str, dict[str, FileTensor]]:
    """Return the first and the second matrices, by the source's names of the weights that they change."""
    n_rows = base.shapes.get(_EMBEDDING, (0,))[-1]
    sides: dict[str, dict[str, FileTensor]] = {"a": {}, "b": {}}
    for name, tensor in read_weights(folder, _WEIGHTS).items():
        if name.endswith(_VOCABULARY_COPIES):
            # PEFT saves the base model's matrix with an adapter on it, in case the vocabulary has grown
            if tensor.shape[-1] != n_rows:
                raise _unsupported(f"has a vocabulary of {tensor.shape[-1]} tokens, its base model one of {n_rows}")
            continue
        ending = next((ending for ending in _SIDES if name.endswith(ending)), None)
        if ending is None:
            raise _unsupported(f"contains {name[:128]!r}, which is not a LoRA matrix")
        weight = name.removeprefix(_PREFIX).removesuffix(ending) + ".weight"
        weight = weight.replace("language_model.", "", 1) if base.architecture.names.skipped_modules else weight
        if weight in sides[_SIDES[ending]]:
            raise _unsupported(f"changes {weight[:128]!r} twice")
        sides[_SIDES[ending]][weight] = tensor
    odd = sorted(sides["a"].keys() ^ sides["b"].keys())
    if odd or not sides["a"]:
        raise _unsupported(f"lacks one of the two matrices for {odd[0][:128]!r}" if odd else "changes nothing")
    return sides


def _placed(tensors: Mapping[str, FileTensor], side: str, base: _BaseModel) -> dict[str, SourceTensor]:
    """Return one side's matrices in place of their weights: the first has their columns, the second their rows. All
    parts of a fused weight share its first. Nothing is left out in silence, as in a model, nor generated."""
    names = replace(base.architecture.names, ignored=(), unused=(), skipped_modules=(), leaves_later_layers=False)
    layout = base.architecture.layout
    if side == "a":
        shared = {ending: dict.fromkeys(parts, whole_tensor) for ending, parts in layout.splits.items()}
        layout = replace(layout, row_orders={}, row_factors={}, splits=shared)
    else:
        layout = replace(layout, column_orders={})
    nothing = RequiredTensors(layer={}, model=lambda _config: {}, generate=lambda _config: [])
    untied = Config({**base.config.values, "tie_word_embeddings": False})
    return map_tensors(tensors, untied, replace(base.architecture, tensors=nothing, names=names, layout=layout))


def _entries(folder: Path, settings: Config, architecture: Architecture) -> Iterator[Entry]:
    yield encode_entry("general.architecture", architecture.gguf_name, "str")
    yield encode_entry("general.type", "adapter", "str")
    yield encode_entry("general.name", folder.resolve().name, "str")
    yield encode_entry("adapter.type", "lora", "str")
    alpha = settings.number("lora_alpha")
    if settings.flag("use_rslora"):
        alpha *= math.sqrt(settings.integer("r"))  # llama.cpp divides by the rank, this kind by its root
    yield encode_entry("adapter.lora.alpha", alpha, "f32")


def _unsupported(what: str) -> CheckpointError:
    return CheckpointError(f"The adapter {what}.", "Merge it into its model with PEFT, and convert that.")


# config.json's name -> GGUF's, of settings that rearranging a weight needs
_SETTINGS = {
    "hidden_size": "embedding_length",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_value_head_dim": "ssm.state_size",  # llama.cpp has one width for both
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_local_experts": "expert_count",
}


@dataclass(frozen=True, slots=True)
class _BaseModel:
    """The base model's architecture, settings, and the shape of every weight in ggml order; read from `file`."""

    file: Path
    architecture: Architecture
    config: Config
    shapes: Mapping[str, tuple[int, ...]]


def _open_base(path: Path) -> _BaseModel:
    """Read the config.json of a folder or the header of a GGUF. Raises UserError for anything else."""
    if path.is_dir():
        file = path / "config.json"
        architecture, config = find_architecture(
            as_object(read_json(file), "config.json of the base model", "Download it again.")
        )
        return _BaseModel(file, architecture, config, needed_tensors(architecture, config))
    if not path.is_file():
        raise UsageError(f"There is no model {path}.", "Name the model's folder or GGUF with --base.")
    header = validate_gguf(path)
    shapes = {tensor.name: tensor.shape for tensor in tensors_of(header)}
    # the architecture of this name that has experts, or has none, as the model does
    has_experts = bool(header.integer(f"{header.architecture}.expert_count"))
    known = (entry for of_class in ARCHITECTURES.values() for entry in (of_class, *of_class.variants))
    entries = [entry for entry in known if entry.gguf_name == header.architecture]
    fitting = [
        entry for entry in entries if any(row.key == "expert_count" for row in entry.hyperparameters) == has_experts
    ] or entries
    if not fitting:
        cause = f"Adapters for {header.architecture[:64]!r} models cannot be converted yet."
        raise CheckpointError(cause, "Look for a GGUF of this adapter.")
    values = {name: header.integer(f"{header.architecture}.{key}") for name, key in _SETTINGS.items()}
    config = Config({name: value for name, value in values.items() if value is not None})
    return _BaseModel(path, fitting[0], config, shapes)
