"""The table of architectures that can be converted: data, so that adding one takes a few lines.

The entries are in `families`; `projectors` has those of what sees. An entry has its HF classes, llama.cpp's name, which
config values become which metadata, how tensors are rearranged, which are generated, and which are required. Tensor
names come from gguf's map.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quantizer.architectures.architecture import Architecture, check_settings, given, unfolded, usually_named
from quantizer.architectures.families import FAMILIES
from quantizer.architectures.metadata_rows import no_factors
from quantizer.architectures.shapes import (
    N_PREDICTION_LAYERS,
    PREDICTION,
    count_prediction_layers,
    n_all_layers,
    resolve_shapes,
)
from quantizer.architectures.unknown_class import unknown_class
from quantizer.checkpoint.config import Config
from quantizer.convert.source_model import SourceTensor

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture", "generated_tensors", "needed_tensors"]

# HF class -> its entry
ARCHITECTURES: dict[str, Architecture] = {name: entry for entry in FAMILIES for name in entry.hf_classes}


def find_architecture(values: dict[str, Any], names: Collection[str] | None = None) -> tuple[Architecture, Config]:
    """Return the entry for a parsed config.json, and the config of its language model with the class's defaults.

    The `names` of the checkpoint's tensors, where they are known, decide whether it has a layer that predicts further.
    Raises CheckpointError naming a class without an entry, or a setting that llama.cpp would not follow.
    """
    classes = values.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if name not in ARCHITECTURES:
        raise unknown_class(name, values, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    own = _language_settings(unfolded(values))
    parts = (*(given(Config(own).section(name).values) for name in architecture.settings.sections), own)
    named = [setting for part in parts for setting in usually_named(part, architecture.settings.aliases).items()]
    # the number of layers where config.json has only a list of them, as transformers saves Nemotron-H
    kinds = own.get("layers_block_type")
    counted = {"num_hidden_layers": len(kinds)} if isinstance(kinds, list) else {}
    config = Config({**counted, **architecture.settings.defaults, **dict(named)})
    architecture = architecture.variant(config) or architecture
    n_predicting = count_prediction_layers(config, names) if architecture.names.keeps_prediction_layer else 0
    config = Config({**config.values, N_PREDICTION_LAYERS: n_predicting})
    check_settings(architecture, config)
    return architecture, config


def needed_tensors(architecture: Architecture, config: Config) -> dict[str, tuple[int, ...]]:
    """Return every tensor that a model of this config must have -> its shape in ggml order."""
    of_layers, n_layers = architecture.tensors.layer, config.integer("num_hidden_layers")
    tensors = resolve_shapes(architecture.tensors.model(config), config)
    for i in range(n_all_layers(config)):
        own = of_layers(config, i) if callable(of_layers) else of_layers
        shapes = resolve_shapes({**own, **(PREDICTION if i >= n_layers else {})}, config)
        tensors |= {f"{architecture.names.blocks}.{i}.{name}": shape for name, shape in shapes.items()}
    return tensors


def generated_tensors(architecture: Architecture, config: Config) -> Sequence[SourceTensor]:
    """Return the tensors that no checkpoint has. Raises CheckpointError for a rope scaling that the graph lacks."""
    return (architecture.tensors.generate or no_factors)(config)


def _language_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the language model of several parts; whether embeddings are tied, the whole decides."""
    whole, part = given(values), given(Config(values).section("text_config").values)
    ties = {key: value for key, value in whole.items() if key == "tie_word_embeddings"}
    return whole | part | ties
