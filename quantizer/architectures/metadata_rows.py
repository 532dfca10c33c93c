"""Metadata rows that many architectures share, in groups to be added up; the settings of rotary positions, and the
tensors of divisors that some of their scalings become.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from quantizer.architectures.architecture import Hyperparameter, Value
from quantizer.architectures.shapes import N_PREDICTION_LAYERS, head_size, n_all_layers, n_feed_forward
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import GeneratedTensor

# reads the value of a row from config.json
Read: TypeAlias = Callable[[Config], Value]


def u32(key: str, value: Read | Value, *more: str) -> Hyperparameter:
    """Return a row; a string is the name of a setting, which must exist, or the first of several names that does."""
    return Hyperparameter(key, "u32", integer(value, *more) if isinstance(value, str) else value)


def f32(key: str, value: Read | Value, *more: str) -> Hyperparameter:
    """Return a row like `u32`; for a setting that may be missing, `value` is `number(...)`."""
    if not isinstance(value, str):
        return Hyperparameter(key, "f32", value)
    return Hyperparameter(key, "f32", lambda config: config.number(value, *more))


def _row_of(type_name: str) -> Callable[[str, Read | Value], Hyperparameter]:
    return lambda key, value: Hyperparameter(key, type_name, value)


boolean, string = _row_of("bool"), _row_of("str")
bool_list, string_list, f32_list = _row_of("bool[]"), _row_of("str[]"), _row_of("f32[]")
u32_list, i32_list = _row_of("u32[]"), _row_of("i32[]")


def flag(key: str, setting: str) -> Hyperparameter:
    """Return a row that is false without the setting."""
    return boolean(key, lambda config: config.flag(setting) or False)


def where(applies: Callable[[Config], bool], rows: Iterable[Hyperparameter]) -> tuple[Hyperparameter, ...]:
    """Return `rows`, left out of the files of configs to which they do not apply."""
    return tuple(
        replace(row, value=lambda config, row=row: row.read(config) if applies(config) else None)  # type: ignore[misc]
        for row in rows
    )


_GATING = {"softmax": 1, "sigmoid": 2}  # llama.cpp's numbers for how experts are chosen
BY_SIGMOID = u32("expert_gating_func", _GATING["sigmoid"])


def gating(setting: str, default: str = "") -> Hyperparameter:
    """Return the row of how experts are chosen; reading it raises CheckpointError for another way."""

    def read(config: Config) -> Value:
        name = config.text(setting) or default
        if name not in _GATING:
            cause = f"The expert scoring function {name[:32]!r} is not supported."
            raise CheckpointError(cause, "Choose another model.")
        return _GATING[name]

    return u32("expert_gating_func", read)


def each_layer(read: Callable[[Config, int], Any]) -> Read:
    """Return a function that lists what `read` says of each layer."""
    return lambda config: [read(config, i) for i in range(config.integer("num_hidden_layers"))]


def kv_heads_where(attends: Callable[[Config, int], bool], *more: str) -> Hyperparameter:
    """Return the row with the key heads of each layer, none where it has a state or a convolution."""
    return u32_list(
        "attention.head_count_kv",
        each_layer(lambda config, i: config.integer("num_key_value_heads", *more) if attends(config, i) else 0),
    )


# a dynamic scaling changes nothing within the context that the model was trained on, which is what is written
_KINDS = ("default", "linear", "yarn", "llama3", "dynamic")


def rope_of(config: Config) -> Config:
    """Return the rope settings, which transformers 5 keeps in one object and earlier versions in two places."""
    settings = config.section("rope_parameters", "rope_scaling")
    # of a model with sliding windows those of its full attention
    return settings.section("full_attention") if "full_attention" in settings.values else settings


def kind_of(config: Config, known: Collection[str] = _KINDS) -> str:
    """Return the name of the scaling, "default" for none. Raises CheckpointError when it is not one of the `known`."""
    kind = rope_of(config).text("rope_type") or rope_of(config).text("type") or "default"
    if kind not in known:
        raise CheckpointError(f"The rope scaling {kind[:32]!r} is not supported.", "Choose another model.")
    return kind


def rope_base(config: Config) -> float:
    """Return the base of the frequencies, by default the 10,000 of most classes."""
    return rope_of(config).optional_number("rope_theta") or config.optional_number("rope_theta") or 10_000.0


def rope_number(*names: str, kinds: Collection[str] = _KINDS) -> Callable[[Config], Value]:
    """Return a function that reads a number of the rope settings, None for a scaling other than `kinds`."""
    return lambda config: rope_of(config).optional_number(*names) if kind_of(config) in kinds else None


def _original_context(config: Config) -> Value:
    return rope_of(config).integer("original_max_position_embeddings") if kind_of(config) == "yarn" else None


ROPE = (
    string("rope.scaling.type", lambda config: kind if (kind := kind_of(config)) in ("linear", "yarn") else None),
    f32("rope.scaling.factor", rope_number("factor", kinds=("linear", "yarn"))),
    u32("rope.scaling.original_context_length", _original_context),
    f32("rope.scaling.yarn_ext_factor", rope_number("extrapolation_factor", kinds=("yarn",))),
    f32("rope.scaling.yarn_attn_factor", rope_number("attention_factor", "attn_factor", kinds=("yarn",))),
    f32("rope.scaling.yarn_beta_fast", rope_number("beta_fast", kinds=("yarn",))),
    f32("rope.scaling.yarn_beta_slow", rope_number("beta_slow", kinds=("yarn",))),
    f32("rope.freq_base", rope_base),
)


def partly_rotated(share: float) -> Callable[[Config], Value]:
    """Return a function that gives the rotated numbers of a head; the config's own share comes before `share`."""

    def read(config: Config) -> Value:
        configured = rope_of(config).optional_number("partial_rotary_factor")
        configured = config.optional_number("partial_rotary_factor") if configured is None else configured
        return int(head_size(config) * (share if configured is None else configured))

    return read


def llama3_factors(config: Config) -> list[GeneratedTensor]:
    """Return the divisors of frequencies as published with Llama 3.1: slow ones by `factor`, fast by one, a ramp."""
    if kind_of(config) != "llama3":
        return []
    rope = rope_of(config)
    factor = rope.optional_number("factor") or 8.0
    low, high = rope.optional_number("low_freq_factor") or 1.0, rope.optional_number("high_freq_factor") or 4.0
    n_original = rope.optional_number("original_max_position_embeddings") or 8192.0
    if not 0 < low <= high or factor <= 0:
        raise CheckpointError("config.json has an invalid llama3 rope scaling.", "Check low_freq_factor and factor.")
    size, base = head_size(config), rope_base(config)
    divisors = []
    for pair in range(0, size, 2):
        turns = n_original * base ** (-pair / size) / (2 * math.pi)
        # Llama 4 has a step in its place
        ramp = min(1.0, max(0.0, (turns - low) / (high - low))) if low < high else float(turns >= low)
        divisors.append(1 / ((1 - ramp) / factor + ramp))
    return [GeneratedTensor("rope_freqs.weight", tuple(divisors))]


def no_factors(config: Config) -> list[GeneratedTensor]:
    """Return no divisors. Raises CheckpointError for Llama 3's scaling, whose divisors the graph does not read."""
    if kind_of(config) == "llama3":
        raise CheckpointError(
            "config.json has the rope scaling 'llama3', which llama.cpp does not support for this architecture.",
            "Choose another model.",
        )
    return []


def long_factors(n_rotated: Callable[[Config], Value]) -> Callable[[Config], list[GeneratedTensor]]:
    """Return a function that gives longrope's two lists of divisors, for short and for long contexts."""

    def generate(config: Config) -> list[GeneratedTensor]:
        rope = rope_of(config)
        if rope.values.get("long_factor") is None:
            return []
        n_pairs = int(n_rotated(config) or 0) // 2  # type: ignore[arg-type]
        return [
            GeneratedTensor(f"rope_factors_{name}.weight", _divisors(rope, f"{name}_factor", n_pairs))
            for name in ("long", "short")
        ]

    return generate


def _trained_context(config: Config) -> int:
    kind_of(config, ("default", "longrope", "su"))
    original = rope_of(config).optional_integer("original_max_position_embeddings")
    return original or config.integer("original_max_position_embeddings", "max_position_embeddings")


def _attention_factor(config: Config) -> Value:
    """Return longrope's factor of attention. Source: LongRoPE, the scaling published with Phi 3 (128k)."""
    if rope_of(config).values.get("long_factor") is None:
        return None
    original = max(2, _trained_context(config))
    scale = config.integer("max_position_embeddings") / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


LONG_ROPE = (
    u32("rope.scaling.original_context_length", _trained_context),
    f32("rope.scaling.attn_factor", _attention_factor),
)


def _divisors(rope: Config, name: str, n_pairs: int) -> tuple[float, ...]:
    values = rope.values.get(name)
    if not isinstance(values, list) or len(values) != n_pairs:
        raise CheckpointError(
            f"{name} of the rope scaling in config.json must have {n_pairs} numbers.", "Check config.json."
        )
    return tuple(Config({name: value}).number(name) for value in values)


def integer(*names: str) -> Callable[[Config], Value]:
    """Return a function that reads the first of these settings that exists; one must."""
    return lambda config: config.integer(*names)


def number(*names: str) -> Callable[[Config], Value]:
    """Return a function that reads the first of these settings that exists; without any the row is left out."""
    return lambda config: config.optional_number(*names)


def without(rows: Iterable[Hyperparameter], *keys: str) -> tuple[Hyperparameter, ...]:
    """Return `rows` without those of the `keys`; a key that ends in a dot stands for all that begin with it."""
    beginnings = tuple(key for key in keys if key.endswith("."))
    return tuple(row for row in rows if row.key not in keys and not row.key.startswith(beginnings))


SIZES = (
    u32("block_count", n_all_layers),
    u32("context_length", "max_position_embeddings"),
    u32("embedding_length", "hidden_size"),
    u32("feed_forward_length", n_feed_forward),
)
_HEADS = (
    u32("attention.head_count", "num_attention_heads"),
    u32("attention.head_count_kv", "num_key_value_heads", "num_attention_heads"),
    u32("attention.key_length", head_size),
    u32("attention.value_length", head_size),
)
DECODER = SIZES + _HEADS + ROPE
RMS_NORM = (f32("attention.layer_norm_rms_epsilon", "rms_norm_eps"),)
LAYER_NORM = (f32("attention.layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),)
PREDICTION_ROW = (u32("nextn_predict_layers", lambda config: config.optional_integer(N_PREDICTION_LAYERS) or None),)
VOCABULARY = (u32("vocab_size", "vocab_size"),)
ROTATED = (u32("rope.dimension_count", head_size),)
EXPERTS = (
    u32("expert_count", "num_local_experts", "num_experts", "n_routed_experts"),
    u32("expert_used_count", "num_experts_per_tok"),
)


def rotation_sections(default: tuple[int, ...]) -> Callable[[Config], Value]:
    """Return a function that reads how the rotations of a head are divided."""

    def read(config: Config) -> Value:
        sections = rope_of(config).values.get("mrope_section", default)
        if not isinstance(sections, list | tuple) or len(sections) > 4 or not all(type(n) is int for n in sections):
            raise CheckpointError("config.json has no valid rope `mrope_section`.", "Check mrope_section.")
        return [*sections, 0, 0, 0, 0][:4]

    return read


def no_scaling(config: Config) -> Value:
    """Return the type of rope scaling `none`. Raises CheckpointError where config.json has one."""
    kind_of(config, ("default",))
    return "none"


def _unwritten_scaling(config: Config) -> Value:
    kind_of(config, ("default",))
    return None


# checks that positions are not scaled, and writes no row
UNSCALED = (string("rope.scaling.type", _unwritten_scaling),)
WINDOW = (u32("attention.sliding_window", "sliding_window"),)


def windows_but_every(n: int) -> Callable[[Config], list[str]]:
    """Return a function that lists the kinds of all layers as transformers does; every n-th attends to everything."""

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


WINDOW_PATTERN = (bool_list("attention.sliding_window_pattern", _pattern),)
WINDOW_ROPE = (f32("rope.freq_base_swa", _rope_base),)
