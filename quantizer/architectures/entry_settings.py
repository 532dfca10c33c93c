"""What every entry of the tables does with the settings of a config.json: names, absent values, and the check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantizer.architectures.architecture import Architecture
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError

_MAX_LAYERS = 512


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not null."""
    return {key: value for key, value in values.items() if value is not None}


def unfolded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a whole, where those of the part that answers may be in a section beside what speaks."""
    return {**given(values), **given(Config(values).section("thinker_config").values)}


def usually_named(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings, under their usual names too."""
    return {name: values[alias] for alias, name in aliases.items() if alias in values} | dict(values)


def check_settings(architecture: Architecture, config: Config) -> None:
    """Raise CheckpointError for an impossible number of layers, or a setting that llama.cpp would not follow."""
    n_layers = config.integer("num_hidden_layers")
    if not 0 < n_layers <= _MAX_LAYERS:
        raise CheckpointError(f"config.json has num_hidden_layers = {n_layers}.", "Check config.json.")
    for key, expected in architecture.assumed.items():
        value = config.values.get(key)
        if value is not None and value != expected(config):
            raise CheckpointError(
                f"config.json has {key} = {str(value)[:64]}, which llama.cpp does not support for this architecture.",
                "Choose another model.",
            )
