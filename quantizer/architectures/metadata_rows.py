"""Metadata rows that many architectures share, in groups to be added up; the settings of rotary positions, and the
tensors of divisors that some of their scalings become.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
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


def _named_kind(config: Config) -> str:
    return rope_of(config).text("rope_type") or rope_of(config).text("type") or "default"


def kind_of(config: Config, known: Collection[str] = _KINDS) -> str:
    """Return the name of the scaling, "default" for none. Raises CheckpointError when it is not one of the `known`."""
    kind = _named_kind(config)
    if kind not in known:
        raise CheckpointError(
            f"The rope scaling {kind[:32]!r} is not supported (rope_parameters in config.json).",
            "Choose another model.",
        )
    return kind


def rope_base(config: Config) -> float:
    """Return the base of the frequencies, by default the 10,000 of most classes."""
    return rope_of(config).optional_number("rope_theta") or config.optional_number("rope_theta") or 10_000.0


def rope_number(*names: str, kinds: Collection[str] = _KINDS) -> Callable[[Config], Value]:
    """Return a function that reads a number of the rope settings, None for a scaling other than `kinds`."""
    return lambda config: rope_of(config).optional_number(*names) if kind_of(config) in kinds else None


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN as config.json describes it, with transformers' defaults.

    Source: `_compute_yarn_parameters` in modeling_rope_utils.py, transformers 5.24.
    """

    factor: float
    n_original: int
    # what the rotated part of queries and of keys is multiplied with
    attention: float
    beta_fast: float
    beta_slow: float
    is_truncated: bool

    def ramp(self, n_rotated: int, base: float) -> tuple[float, float]:
        """Return the pair where the rotations of a head begin to slow down, and the one where they are slowest."""
        low, high = (
            n_rotated * math.log(self.n_original / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (self.beta_fast, self.beta_slow)
        )
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, n_rotated - 1)


_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def yarn_of(config: Config) -> Yarn | None:
    """Return the YaRN of config.json, None for another scaling. Raises CheckpointError for impossible numbers."""
    if kind_of(config) != "yarn":
        return None
    rope = rope_of(config)
    n_trained = config.optional_integer("max_position_embeddings")
    n_original = rope.optional_integer("original_max_position_embeddings")
    n_original = n_original or config.optional_integer("original_max_position_embeddings") or n_trained or 0
    factor = rope.optional_number("factor")
    if factor is None and n_original:
        factor = config.integer("max_position_embeddings") / n_original
    fast, slow = (rope.optional_number(name) or default for name, default in _BETAS.items())
    if not factor or factor < 0 or n_original <= 0 or not fast >= slow > 0 or rope_base(config) <= 1:
        raise CheckpointError(
            "config.json has an invalid yarn rope scaling.", "Check factor, beta_fast, beta_slow and rope_theta."
        )
    attention = rope.optional_number("attention_factor")
    if attention is None:
        scale, scale_of_all = rope.optional_number("mscale"), rope.optional_number("mscale_all_dim")
        attention = (
            mscale(factor, scale) / mscale(factor, scale_of_all) if scale and scale_of_all else mscale(factor, 1.0)
        )
    if attention <= 0:
        raise CheckpointError("config.json has an attention_factor that is not positive.", "Check attention_factor.")
    return Yarn(factor, n_original, attention, fast, slow, rope.flag("truncate") is not False)


def mscale(factor: float, weight: float) -> float:
    """Return what YaRN multiplies by, at a `factor` of length and a `weight`. Source: as of `Yarn`."""
    return 1.0 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0


def yarn_number(read: Callable[[Yarn], float]) -> Callable[[Config], Value]:
    """Return a function that reads a number of YaRN, None for another scaling."""
    return lambda config: None if (yarn := yarn_of(config)) is None else read(yarn)


def attention_correction(native: Callable[[Config, Yarn], float]) -> Hyperparameter:
    """Return the row of what llama.cpp multiplies its `native` factor with, which it derives from the other rows.

    Source: llama_context's constructor in src/llama-context.cpp, which divides by what ggml's rope_yarn multiplies
    with, as vendored in llama-cpp-python 0.3.36. It reads yarn_attn_factor for Grok only, this row for all.
    """

    def read(config: Config) -> Value:
        yarn = yarn_of(config)
        if yarn is None:
            return None
        correction = yarn.attention / native(config, yarn)
        return None if correction == 1 else correction

    return f32("rope.scaling.attn_factor", read)


def scaling_factor(config: Config) -> Value:
    """Return by how much a yarn or linear scaling lengthens the context, None for another."""
    yarn = yarn_of(config)
    return yarn.factor if yarn else rope_number("factor", kinds=("linear",))(config)


def _if_configured(name: str) -> Callable[[Config], Value]:
    return lambda config: None if yarn_of(config) is None else rope_of(config).optional_number(name)


_ORIGINAL_CONTEXT = u32("rope.scaling.original_context_length", yarn_number(lambda yarn: yarn.n_original))
ROPE = (
    string("rope.scaling.type", lambda config: kind if (kind := kind_of(config)) in ("linear", "yarn") else None),
    f32("rope.scaling.factor", scaling_factor),
    _ORIGINAL_CONTEXT,
    attention_correction(lambda _config, yarn: mscale(yarn.factor, 1.0)),
    # llama.cpp reads these for two architectures; the engine passes them to it for all
    *(f32(f"rope.scaling.yarn_{name}", _if_configured(name)) for name in _BETAS),
    f32("rope.freq_base", rope_base),
)


def has_fractional_ramp(config: Config, n_rotated: Callable[[Config], Value] = head_size) -> bool:
    """Return whether YaRN's ramp ends between pairs of a head; llama.cpp's ends are whole pairs."""
    yarn, size, base = yarn_of(config), n_rotated(config), rope_base(config)
    assert isinstance(size, int)
    return yarn is not None and yarn.ramp(size, base) != replace(yarn, is_truncated=True).ramp(size, base)


def _is_divided(config: Config) -> bool:
    """Return whether YaRN has to become divisors: llama.cpp alone would take the default betas, and whole pairs."""
    yarn, size, base = yarn_of(config), head_size(config), rope_base(config)
    if yarn is None:
        return False
    usual = replace(yarn, beta_fast=_BETAS["beta_fast"], beta_slow=_BETAS["beta_slow"], is_truncated=True)
    return yarn.ramp(size, base) != usual.ramp(size, base)


def divided_rope(scaled: Iterable[Hyperparameter] = ROPE) -> tuple[Hyperparameter, ...]:
    """Return the rows of a graph that reads divisors: of any YaRN that `scaled` cannot express they say little."""
    always = {_ORIGINAL_CONTEXT.key, "rope.freq_base"}
    whole_factor = f32("rope.scaling.attn_factor", yarn_number(lambda yarn: yarn.attention))

    def row(each: Hyperparameter) -> Hyperparameter:
        if each.key in always:
            return each
        divided = whole_factor if each.key == whole_factor.key else replace(each, value=None)
        return replace(each, value=lambda config: (divided if _is_divided(config) else each).read(config))

    return tuple(map(row, scaled))


def partly_rotated(share: float) -> Callable[[Config], Value]:
    """Return a function that gives the rotated numbers of a head; the config's own share comes before `share`."""

    def read(config: Config) -> Value:
        configured = rope_of(config).optional_number("partial_rotary_factor")
        configured = config.optional_number("partial_rotary_factor") if configured is None else configured
        return int(head_size(config) * (share if configured is None else configured))

    return read


def frequency_divisors(config: Config) -> list[GeneratedTensor]:
    """Return the divisors of frequencies that Llama 3's scaling is, or a YaRN whose ramp llama.cpp lacks."""
    kind, size, base = kind_of(config), head_size(config), rope_base(config)
    if kind == "yarn":
        yarn = yarn_of(config)
        return [_yarn_divisors(yarn, size, base)] if yarn and _is_divided(config) else []
    return [_llama3_divisors(config, size, base)] if kind == "llama3" else []


def _yarn_divisors(yarn: Yarn, n_rotated: int, base: float) -> GeneratedTensor:
    """Return them: one up to the ramp's low end, YaRN's factor from its high end on."""
    low, high = yarn.ramp(n_rotated, base)
    width = high - low or 0.001  # as transformers has it
    ramp = (min(1.0, max(0.0, (pair - low) / width)) for pair in range(n_rotated // 2))
    return GeneratedTensor("rope_freqs.weight", tuple(1 / (share / yarn.factor + 1 - share) for share in ramp))


def _llama3_divisors(config: Config, size: int, base: float) -> GeneratedTensor:
    """Return them as published with Llama 3.1: slow ones by `factor`, fast by one, a ramp between."""
    rope = rope_of(config)
    factor = rope.optional_number("factor") or 8.0
    low, high = rope.optional_number("low_freq_factor") or 1.0, rope.optional_number("high_freq_factor") or 4.0
    n_original = rope.optional_number("original_max_position_embeddings") or 8192.0
    if not 0 < low <= high or factor <= 0:
        raise CheckpointError("config.json has an invalid llama3 rope scaling.", "Check low_freq_factor and factor.")
    divisors = []
    for pair in range(0, size, 2):
        turns = n_original * base ** (-pair / size) / (2 * math.pi)
        # Llama 4 has a step in its place
        ramp = min(1.0, max(0.0, (turns - low) / (high - low))) if low < high else float(turns >= low)
        divisors.append(1 / ((1 - ramp) / factor + ramp))
    return GeneratedTensor("rope_freqs.weight", tuple(divisors))


def no_divisors(config: Config, n_rotated: Callable[[Config], Value] = head_size) -> list[GeneratedTensor]:
    """Return none. Raises CheckpointError for a scaling that needs some, which the graph does not read."""
    kind = _named_kind(config)
    if kind == "llama3" or (kind == "yarn" and has_fractional_ramp(config, n_rotated)):
        raise CheckpointError(
            f"config.json has the rope scaling {kind!r}{' with truncate = False' if kind == 'yarn' else ''},"
            " which llama.cpp does not support for this architecture.",
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
# of those whose graph reads divisors of the frequencies, which `frequency_divisors` generates
DIVIDED_DECODER = SIZES + _HEADS + divided_rope()
RMS_NORM = (f32("attention.layer_norm_rms_epsilon", "rms_norm_eps"),)
LAYER_NORM = (f32("attention.layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),)
PREDICTION_ROW = (u32("nextn_predict_layers", lambda config: config.optional_integer(N_PREDICTION_LAYERS) or None),)
VOCABULARY = (u32("vocab_size", "vocab_size"),)
ROTATED = (u32("rope.dimension_count", head_size),)
EXPERTS = (
    u32("expert_count", "num_local_experts", "num_experts", "n_routed_experts"),
    u32("expert_used_count", "num_experts_per_tok"),
)


# experts are chosen within the best of their groups
GROUPS = (
    u32("expert_group_count", lambda config: config.optional_integer("n_group")),
    u32("expert_group_used_count", lambda config: config.optional_integer("topk_group")),
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


def _window_within(config: Config) -> int | None:
    """Return the window where a layer has one that is shorter than the context."""
    kinds, n_without = config.values.get("layer_types"), config.optional_integer("max_window_layers") or 0
    has_any = "sliding_attention" in kinds if kinds else n_without < config.integer("num_hidden_layers")
    if config.flag("use_sliding_window") is False or not has_any:
        return None
    window = config.optional_integer("sliding_window")
    return window if window and window < config.integer("max_position_embeddings") else None


def _beyond_window(config: Config) -> tuple[str, ...]:
    if not (window := _window_within(config)):
        return ()
    return (
        f"Layers of this model attend to the last {window:,} tokens; llama.cpp has no window for this architecture."
        f" The context is limited to {window:,} of {config.integer('max_position_embeddings'):,} tokens.",
    )


def capped_at_window(entry: Architecture) -> Architecture:
    """Return the entry of a class whose layers have a window, all or some, which llama.cpp's graph lacks.

    Within the window nothing differs, so that is the context.
    """
    context = u32("context_length", lambda config: _window_within(config) or config.integer("max_position_embeddings"))
    return replace(
        entry,
        hyperparameters=tuple(context if row.key == context.key else row for row in entry.hyperparameters),
        approximations=lambda config: (*entry.approximations(config), *_beyond_window(config)),
    )


def windows_but_every(n: int) -> Callable[[Config], list[str]]:
    """Return a function that lists the kinds of all layers as transformers does; every n-th attends to everything."""

    def kinds(config: Config) -> list[str]:
        n_layers = config.integer("num_hidden_layers")
        return ["sliding_attention" if (i + 1) % n else "full_attention" for i in range(n_layers)]

    return kinds


def _window_base(config: Config) -> Value:
    windowed = config.section("rope_parameters").section("sliding_attention")
    kind_of(Config({"rope_parameters": windowed.values}), ("default",))  # refuses a scaling of layers with a window
    return windowed.optional_number("rope_theta") or config.optional_number("rope_local_base_freq")


def _pattern(config: Config, every: int = 4) -> list[bool]:
    kinds = config.values.get("layer_types") or windows_but_every(every)(config)
    return [kind == "sliding_attention" for kind in kinds]


_PATTERN = "attention.sliding_window_pattern"
WINDOW_PATTERN = (bool_list(_PATTERN, _pattern),)


def windows_unless_every(every: int, setting: str = "sliding_window_pattern") -> Hyperparameter:
    """Return the row of which layers have a window, left out where every n-th has none, which the graph assumes.

    `setting` counts where config.json does not list the layers; empty for a class that never reads it.
    """

    def read(config: Config) -> Value:
        usual = [(i + 1) % every != 0 for i in range(config.integer("num_hidden_layers"))]
        pattern = _pattern(config, config.optional_integer(setting) or every)
        if len(pattern) != len(usual):
            raise CheckpointError("layer_types in config.json does not list every layer.", "Check layer_types.")
        return None if pattern == usual else pattern

    return bool_list(_PATTERN, read)


def _scaled_window_base(config: Config) -> Value:
    yarn = yarn_of(config) if _named_kind(config) == "yarn" else None
    if yarn and yarn.attention != mscale(yarn.factor, 1.0):
        raise CheckpointError(
            "config.json has an attention factor of yarn, which llama.cpp would apply to layers with a window too.",
            "Choose another model.",
        )
    return _window_base(config)


# of graphs that multiply the rotations of all layers by one factor, and of those that leave layers with a window alone
WINDOW_ROPE = (f32("rope.freq_base_swa", _scaled_window_base),)
UNSCALED_WINDOW_ROPE = (f32("rope.freq_base_swa", _window_base),)
