"""The table of architectures that can be converted: data, so that adding one takes a few lines.

The entries are in `families`. An entry has its HF classes, llama.cpp's name, which config values become which metadata,
how tensors are rearranged, which are generated, and which are required. Tensor names come from gguf's map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.families import FAMILIES
from quantizer.architectures.metadata_rows import no_factors
from quantizer.architectures.shapes import resolve_shapes
from quantizer.architectures.unknown_class import unknown_class
from quantizer.checkpoint.config import Config
from quantizer.convert.source_model import GeneratedTensor
from quantizer.errors import CheckpointError

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture", "generated_tensors", "needed_tensors"]

_MAX_LAYERS = 512
# HF class -> its entry
ARCHITECTURES: dict[str, Architecture] = {name: entry for entry in FAMILIES for name in entry.hf_classes}


def find_architecture(values: dict[str, Any]) -> tuple[Architecture, Config]:
    """Return the entry for a parsed config.json, and the config of its language model with the class's defaults.

    Raises CheckpointError naming a class without an entry, or a setting that llama.cpp would not follow.
    """
    classes = values.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if name not in ARCHITECTURES:
        raise unknown_class(name, values, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    own = _language_settings(values)
    parts = (*(_said(Config(own).section(name).values) for name in architecture.sections), own)
    named = [setting for part in parts for setting in _usual(part, architecture.aliases).items()]
    config = Config({**_counted(own), **architecture.defaults, **dict(named)})
    architecture = architecture.variant(config) or architecture
    n_layers = config.integer("num_hidden_layers")
    if not 0 < n_layers <= _MAX_LAYERS:
        raise CheckpointError(f"config.json has num_hidden_layers = {n_layers}.", "Check config.json.")
    _check_assumptions(architecture, config)
    return architecture, config


def needed_tensors(architecture: Architecture, config: Config) -> dict[str, tuple[int, ...]]:
    """Return every tensor that a model of this config must have -> its shape in ggml order."""
    of_layers = architecture.layer_tensors
    return resolve_shapes(architecture.model_tensors(config), config) | {
        f"blk.{i}.{name}": shape
        for i in range(config.integer("num_hidden_layers"))
        for name, shape in resolve_shapes(of_layers(config, i) if callable(of_layers) else of_layers, config).items()
    }


def generated_tensors(architecture: Architecture, config: Config) -> list[GeneratedTensor]:
    """Return the tensors that no checkpoint has. Raises CheckpointError for a rope scaling that the graph lacks."""
    return (architecture.generate or no_factors)(config)


def _language_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the language model of several parts; whether embeddings are tied, the whole decides."""
    whole, part = _said(values), _said(Config(values).section("text_config").values)
    ties = {key: value for key, value in whole.items() if key == "tie_word_embeddings"}
    return whole | part | ties


def _counted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers where config.json has only a list of them, as transformers saves Nemotron-H."""
    kinds = values.get("layers_block_type")
    return {"num_hidden_layers": len(kinds)} if isinstance(kinds, list) else {}


def _usual(values: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings, under their usual names too."""
    return {name: values[alias] for alias, name in aliases.items() if alias in values} | values


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not null."""
    return {key: value for key, value in values.items() if value is not None}


def _check_assumptions(architecture: Architecture, config: Config) -> None:
    for key, expected in architecture.assumed.items():
        value = config.values.get(key)
        if value is not None and value != expected(config):
            raise CheckpointError(
                f"config.json has {key} = {str(value)[:64]}, which llama.cpp does not support for this architecture.",
                "Choose another model.",
            )
