"""Metadata rows that many architectures share, in groups to be added up; among them those of sliding windows."""

from __future__ import annotations

from collections.abc import Callable

from quantizer.architectures.architecture import Hyperparameter, Value
from quantizer.architectures.rope import ROPE
from quantizer.architectures.shapes import head_size
from quantizer.checkpoint.config import Config

__all__ = [
    *("DECODER", "EXPERTS", "LAYER_NORM", "RMS_NORM", "ROTATED", "SIZES", "VOCABULARY", "WINDOW", "WINDOW_PATTERN"),
    *("WINDOW_ROPE", "integer", "number", "windows_but_every"),
]


def integer(*names: str) -> Callable[[Config], Value]:
    """Return a function that reads the first of these settings that exists; one must."""
    return lambda config: config.integer(*names)


def number(*names: str) -> Callable[[Config], Value]:
    """Return a function that reads the first of these settings that exists; without any the row is left out."""
    return lambda config: config.optional_number(*names)


SIZES = (
    Hyperparameter("block_count", "u32", integer("num_hidden_layers")),
    Hyperparameter("context_length", "u32", integer("max_position_embeddings")),
    Hyperparameter("embedding_length", "u32", integer("hidden_size")),
    Hyperparameter("feed_forward_length", "u32", integer("intermediate_size")),
)
_HEADS = (
    Hyperparameter("attention.head_count", "u32", integer("num_attention_heads")),
    Hyperparameter("attention.head_count_kv", "u32", integer("num_key_value_heads", "num_attention_heads")),
    Hyperparameter("attention.key_length", "u32", head_size),
    Hyperparameter("attention.value_length", "u32", head_size),
)
DECODER = SIZES + _HEADS + ROPE
RMS_NORM = (Hyperparameter("attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("rms_norm_eps")),)
LAYER_NORM = (
    Hyperparameter(
        "attention.layer_norm_epsilon", "f32", lambda config: config.number("layer_norm_eps", "norm_epsilon")
    ),
)
VOCABULARY = (Hyperparameter("vocab_size", "u32", integer("vocab_size")),)
ROTATED = (Hyperparameter("rope.dimension_count", "u32", head_size),)
EXPERTS = (
    Hyperparameter("expert_count", "u32", integer("num_local_experts", "num_experts", "n_routed_experts")),
    Hyperparameter("expert_used_count", "u32", integer("num_experts_per_tok")),
)


WINDOW = (Hyperparameter("attention.sliding_window", "u32", integer("sliding_window")),)


def windows_but_every(n: int) -> Callable[[Config], list[str]]:
    """Return a function that lists the kinds of all layers, in transformers' words, where every n-th attends to
    everything.
    """

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
