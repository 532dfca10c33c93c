"""Sliding windows: how wide they are, and which layers look through them."""

from __future__ import annotations

from collections.abc import Callable

from quantizer.architectures.architecture import Hyperparameter, Value
from quantizer.architectures.rows import integer
from quantizer.config import Config

__all__ = ["WINDOW", "WINDOW_PATTERN", "WINDOW_ROPE", "windows_but_every"]

WINDOW = (Hyperparameter("attention.sliding_window", "u32", integer("sliding_window")),)


def windows_but_every(n: int) -> Callable[[Config], list[str]]:
    """Kinds of all layers, in transformers' words, where every n-th sees everything."""

    def kinds(config: Config) -> list[str]:
        n_layers = config.integer("num_hidden_layers")
        return ["sliding_attention" if (i + 1) % n else "full_attention" for i in range(n_layers)]

    return kinds


def _rope_base(config: Config) -> Value:
    windowed = config.section("rope_parameters").section("sliding_attention")
    return windowed.optional_number("rope_theta") or config.optional_number("rope_local_base_freq")


def _pattern(config: Config) -> Value:
    kinds = config.values.get("layer_types") or windows_but_every(4)(config)
    return [kind == "sliding_attention" for kind in kinds]


WINDOW_PATTERN = (Hyperparameter("attention.sliding_window_pattern", "bool[]", _pattern),)
WINDOW_ROPE = (Hyperparameter("rope.freq_base_swa", "f32", _rope_base),)
