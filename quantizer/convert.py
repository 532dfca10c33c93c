"""A checkpoint folder as the source of a GGUF: what will be written is known from headers alone.

Owns the mapping from a checkpoint's names and settings to llama.cpp's; the architecture table says how. Nothing is
written here, and no weight is read: `quantizer.quantize` does both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture, architecture_of
from quantizer.categories import allows_quantization
from quantizer.checkpoint import Checkpoint, read_checkpoint
from quantizer.config import Config
from quantizer.errors import CheckpointError
from quantizer.layout import Entry, encode_entry
from quantizer.mix import ModelShape
from quantizer.sources import FileTensor, RearrangedTensor, SourceModel, SourceTensor
from quantizer.tensor_types import tensor_type_named
from quantizer.tokenizers import Vocabulary, read_vocabulary

__all__ = ["open_checkpoint"]

_MAX_LAYERS = 512
# where llama.cpp's key is not the role's short name
_ROLE_KEYS = {"unk": "unknown", "pad": "padding"}


def open_checkpoint(folder: Path) -> SourceModel:
    """Read the headers of a Hugging Face checkpoint and say what model llama.cpp would see in it.

    Raises CheckpointError naming whatever cannot be converted.
    """
    checkpoint = read_checkpoint(folder)
    config = Config(checkpoint.config)
    architecture = architecture_of(config)
    vocabulary = read_vocabulary(folder, config)
    tensors = _mapped(checkpoint, config, architecture)
    _check_shapes(tensors, config, architecture)
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
        tuple(path for path in folder.iterdir() if path.is_file() and path.suffix != ".gguf"),
    )


def _mapped(checkpoint: Checkpoint, config: Config, architecture: Architecture) -> dict[str, SourceTensor]:
    names = _name_map(architecture, config)
    tensors: dict[str, SourceTensor] = {}
    is_tied = config.flag("tie_word_embeddings") is True
    for name, tensor in checkpoint.tensors.items():
        if name.endswith(architecture.ignored) or (is_tied and name == "lm_head.weight"):
            continue
        mapped = names.get_type_and_name(name, try_suffixes=(".weight", ".bias"))
        if mapped is None:
            raise CheckpointError(f"The tensor {name[:128]!r} has no place in this architecture.", "Report the model.")
        kind, new_name = mapped
        if new_name in tensors:
            raise CheckpointError(f"Two tensors of the checkpoint would become {new_name}.", "Download it again.")
        tensors[new_name] = _placed(tensor, new_name, kind.name, config, architecture)
    for generated in architecture.generate(config):
        tensors[generated.name] = generated
    return dict(sorted(tensors.items(), key=lambda item: _file_order(item[0])))


def _name_map(architecture: Architecture, config: Config) -> Any:
    """gguf's map of tensor names. Its constructor writes into a table of its class, so it gets a copy."""
    import gguf  # slow to import, needed for conversion only

    n_layers = config.integer("num_hidden_layers")
    if not 0 < n_layers <= _MAX_LAYERS:
        raise CheckpointError(f"config.json says num_hidden_layers = {n_layers}.", "Check config.json.")
    table = dict(gguf.TensorNameMap.block_mappings_cfg)
    private = type("PrivateNameMap", (gguf.TensorNameMap,), {"block_mappings_cfg": table})
    by_name = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    return private(by_name[architecture.gguf_name], n_layers)


def _placed(
    tensor: FileTensor, name: str, kind: str, config: Config, architecture: Architecture
) -> FileTensor | RearrangedTensor:
    row_order = architecture.row_orders.get(kind)
    renamed = replace(tensor, name=name)
    if row_order is None:
        return renamed
    # a bias has one number where a matrix has a row
    n_rows = tensor.shape[-1]
    rows = renamed if len(tensor.shape) > 1 else replace(renamed, shape=(1, n_rows))
    return RearrangedTensor(rows, name, tensor.shape, row_order(config, n_rows))


def _file_order(name: str) -> tuple[int, int, str]:
    """Embedding first, then layer by layer, then what follows the last layer."""
    layer = re.match(r"blk\.(\d+)\.", name)
    if layer:
        return (1, int(layer[1]), name)
    return (2 if name.startswith("output") else 0, 0, name)


def _check_shapes(tensors: Mapping[str, SourceTensor], config: Config, architecture: Architecture) -> None:
    """Every tensor that the architecture needs is there, in the shape that the config implies."""
    layer = architecture.layer_shapes(config)
    needed = architecture.model_shapes(config) | {
        f"blk.{i}.{name}": shape for i in range(config.integer("num_hidden_layers")) for name, shape in layer.items()
    }
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise CheckpointError(
            f"The checkpoint lacks {len(missing)} tensors, {missing[0]} among them.", "Download the whole checkpoint."
        )
    for name, shape in needed.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"The tensor {name} is {_times(tensors[name].shape)}, where config.json implies {_times(shape)}.",
                "Download the checkpoint again.",
            )


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, reversed(shape)))


def _shape(config: Config, architecture: Architecture) -> ModelShape:
    n_heads = config.integer("num_attention_heads")
    n_kv_heads = config.integer("num_key_value_heads", "num_attention_heads")
    if not n_heads or not n_kv_heads or n_heads % n_kv_heads:
        raise CheckpointError(f"{n_heads} attention heads cannot share {n_kv_heads}.", "Check config.json.")
    return ModelShape(architecture.gguf_name, config.integer("num_hidden_layers"), n_heads, n_kv_heads)


def _entries(
    name: str,
    folder: Path,
    config: Config,
    architecture: Architecture,
    vocabulary: Vocabulary,
    tensors: Iterable[SourceTensor],
) -> Iterable[Entry]:
    from quantizer.metadata import describe  # reads the model card through gguf, slow to import

    yield from describe(name, folder, architecture.gguf_name, tensors)
    for row in architecture.hyperparameters:
        value = row.read(config)
        if value is not None:
            yield encode_entry(f"{architecture.gguf_name}.{row.key}", value, row.type_name)
    yield from _vocabulary_entries(vocabulary)


def _vocabulary_entries(vocabulary: Vocabulary) -> Iterable[Entry]:
    prefix = "tokenizer.ggml"
    yield encode_entry(f"{prefix}.model", "gpt2", "str")
    yield encode_entry(f"{prefix}.pre", vocabulary.pre_tokenizer, "str")
    yield encode_entry(f"{prefix}.tokens", vocabulary.tokens, "str[]")
    yield encode_entry(f"{prefix}.token_type", vocabulary.types, "i32[]")
    yield encode_entry(f"{prefix}.merges", vocabulary.merges, "str[]")
    for role, token_id in vocabulary.special_ids.items():
        yield encode_entry(f"{prefix}.{_ROLE_KEYS.get(role, role)}_token_id", token_id, "u32")
    yield encode_entry(f"{prefix}.add_bos_token", vocabulary.add_bos, "bool")
    yield encode_entry(f"{prefix}.add_eos_token", vocabulary.add_eos, "bool")
    if vocabulary.chat_template is not None:
        yield encode_entry("tokenizer.chat_template", vocabulary.chat_template, "str")
