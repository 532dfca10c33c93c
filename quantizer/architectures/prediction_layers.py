"""The layer that predicts one token further: checkpoints keep it behind the last layer, or in a module `mtp`.

Owns finding it, its usual names and its tensors. llama.cpp runs one; where a checkpoint has several, none is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quantizer.checkpoint.config import Config

# the setting that holds their number, which no config.json decides
N_PREDICTION_LAYERS = "n_prediction_layers"
_IN_MODULE = re.compile(r"(?:model\.)?mtp\.(.+)")
_NUMBERED = re.compile(r"layers\.(\d{1,6})\.(.+)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
# names in the module -> those behind the last layer
_USUAL = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}


def count_prediction_layers(config: Config, names: Iterable[str] | None) -> int:
    """Return 1 where the tensors of these `names` have one such layer, without names where the config has; else 0."""
    if names is None:
        return int(config.optional_integer("num_nextn_predict_layers", "mtp_num_hidden_layers") == 1)
    n_layers = config.integer("num_hidden_layers")
    usual = [usual_name(name, n_layers) for name in names]
    later = {number for name in usual if (match := _LAYER.search(name)) and (number := int(match[1])) >= n_layers}
    has_projection = any(f"layers.{n_layers}.eh_proj." in name for name in usual)
    return int(later == {n_layers} and has_projection)


def n_all_layers(config: Config) -> int:
    """Return the number of layers, with the one that predicts further where it is kept."""
    return config.integer("num_hidden_layers") + (config.optional_integer(N_PREDICTION_LAYERS) or 0)


def usual_name(name: str, n_layers: int) -> str:
    """Return the name that a tensor of the module has behind the last of `n_layers`, any other name as it is."""
    if not (match := _IN_MODULE.fullmatch(name)):
        return name
    if inner := _NUMBERED.fullmatch(match[1]):
        return f"model.layers.{n_layers + int(inner[1])}.{inner[2]}"
    part, dot, rest = match[1].partition(".")
    return f"model.layers.{n_layers}.{_USUAL.get(part, part)}{dot}{rest}"
