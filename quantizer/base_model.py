"""The model that an adapter is for: what its tensors are called, how they are arranged, and their shapes.

A checkpoint folder says it in its config.json, a GGUF in its header. No weight is read, and none needs to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quantizer.architectures import ARCHITECTURES, Architecture, needed_tensors, recognise
from quantizer.checkpoint import read_json
from quantizer.config import Config
from quantizer.errors import CheckpointError, UsageError
from quantizer.gate import admit, shard_paths
from quantizer.header import Header, read_header

__all__ = ["BaseModel", "open_base"]

# config.json's name -> GGUF's, of what rearranging a weight may ask for
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
class BaseModel:
    """An entry of the table, the settings it reads, and every weight's shape in ggml order; read from `file`."""

    file: Path
    architecture: Architecture
    config: Config
    shapes: Mapping[str, tuple[int, ...]]


def open_base(path: Path) -> BaseModel:
    """Read the config.json of a folder or the header of a GGUF.

    Raises UsageError when `path` is neither, CheckpointError or ModelFileError for a model that cannot be converted.
    """
    if path.is_dir():
        file = path / "config.json"
        values = read_json(file)
        if not isinstance(values, dict):
            raise CheckpointError("config.json of the base model is not an object.", "Download it again.")
        architecture, config = recognise(values)
        return BaseModel(file, architecture, config, needed_tensors(architecture, config))
    if not path.is_file():
        raise UsageError(f"There is no model {path}.", "Name the model's folder or GGUF with --base.")
    header = admit(path)
    shapes = {tensor.name: tensor.shape for shard in shard_paths(header) for tensor in read_header(shard).tensors}
    return BaseModel(path, _entry(header), _config(header), shapes)


def _entry(header: Header) -> Architecture:
    """Of the entries that become this architecture, the one that has experts or has none, as the model does."""
    has_experts = bool(header.integer(f"{header.architecture}.expert_count"))
    entries = [entry for entry in ARCHITECTURES.values() if entry.gguf_name == header.architecture]
    fitting = [entry for entry in entries if bool(entry.stacks) == has_experts] or entries
    if not fitting:
        cause = f"Adapters for {header.architecture[:64]!r} models cannot be converted yet."
        raise CheckpointError(cause, "Look for a GGUF of this adapter.")
    return fitting[0]


def _config(header: Header) -> Config:
    values = {name: header.integer(f"{header.architecture}.{key}") for name, key in _SETTINGS.items()}
    return Config({name: value for name, value in values.items() if value is not None})
