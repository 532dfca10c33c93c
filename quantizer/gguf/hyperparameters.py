"""Hyperparameters of a GGUF: looking them up, and the ranges that llama.cpp survives.

Source: the assertions of llama.cpp src/llama-model.cpp, llama-hparams.h and the graph operations it builds, as vendored
in llama-cpp-python 0.3.36. Values that it refuses with a message of its own are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantizer.gguf.header import ArrayRef, Header

__all__ = ["hyperparameter", "hyperparameter_faults", "layer_values", "per_layer"]

_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_MAX_WIDTH = 1 << 24

# Suffix after "<architecture>." -> inclusive range; arrays hold it for each element.
_INTEGER_RANGES = {
    "block_count": (1, _MAX_LAYERS),
    "context_length": (1, (1 << 31) - 1),
    "embedding_length": (1, _MAX_WIDTH),
    "feed_forward_length": (0, _MAX_WIDTH),
    "expert_feed_forward_length": (0, _MAX_WIDTH),
    "vocab_size": (1, 1 << 22),
    "attention.head_count": (0, 65_536),
    "attention.head_count_kv": (0, 65_536),
    "attention.key_length": (1, 65_536),
    "attention.value_length": (1, 65_536),
    "attention.sliding_window": (0, (1 << 31) - 1),
    "rope.dimension_count": (0, 65_536),
    "expert_count": (0, _MAX_EXPERTS),
    "expert_used_count": (0, _MAX_EXPERTS),
    "leading_dense_block_count": (0, _MAX_LAYERS),
    "nextn_predict_layers": (0, _MAX_LAYERS),
    "pooling_type": (0, 4),
    "ssm.conv_kernel": (0, 65_536),
    "ssm.state_size": (0, 1 << 20),
    "ssm.inner_size": (0, _MAX_WIDTH),
    "ssm.group_count": (0, 65_536),
}
# Suffix -> lowest and highest finite value.
_FLOAT_RANGES = {
    "attention.layer_norm_epsilon": (0.0, 1.0),
    "attention.layer_norm_rms_epsilon": (0.0, 1.0),
    "attention.group_norm_epsilon": (0.0, 1.0),
    "rope.freq_base": (1e-3, 1e18),
    "rope.scaling.factor": (0.0, 1e6),
    "rope.scale_linear": (0.0, 1e6),
    "rope.scaling.attn_factor": (-1e6, 1e6),
}
_ROPE_SCALING_TYPES = {"none", "linear", "yarn", "longrope"}


def hyperparameter_faults(header: Header) -> Iterator[str]:
    """Yield every hyperparameter that llama.cpp could not survive."""
    prefix = f"{header.architecture}."
    for suffix, (low, high) in _INTEGER_RANGES.items():
        yield from _type_faults(header, prefix + suffix, (int, ArrayRef))
        yield from _range_faults(header, prefix + suffix, low, high)
    for suffix, bounds in _FLOAT_RANGES.items():
        yield from _type_faults(header, prefix + suffix, (int, float, ArrayRef))
        yield from _range_faults(header, prefix + suffix, *bounds)
    scaling = header.text(prefix + "rope.scaling.type", "none")
    if scaling not in _ROPE_SCALING_TYPES:
        yield f"its rope scaling {scaling[:32]!r} is unknown"
    yield from _expert_faults(header, prefix)
    yield from _attention_faults(header, prefix)


def per_layer(header: Header, key: str) -> list[float]:
    """Return a number, or one number for each layer, as a list; empty when the key is missing or holds text."""
    field = header.fields.get(key)
    if field is None or isinstance(field.value, str):
        return []
    if isinstance(field.value, ArrayRef):
        if field.value.count > _MAX_LAYERS:
            return [math.inf]
        return [value for value in header.array(key) if not isinstance(value, str)]
    return [field.value]


def hyperparameter(header: Header, suffix: str) -> int:
    """Return the whole number `<architecture>.<suffix>`, 0 when the file has none."""
    return header.integer(f"{header.architecture}.{suffix}") or 0


def layer_values(header: Header, suffix: str, n_layers: int) -> list[int]:
    """Return `<architecture>.<suffix>` for each of `n_layers`; zeros when the file has none."""
    values = [int(value) for value in per_layer(header, f"{header.architecture}.{suffix}")] or [0]
    return values * n_layers if len(values) == 1 else (values + [0] * n_layers)[:n_layers]


def _type_faults(header: Header, key: str, types: tuple[type, ...]) -> Iterator[str]:
    """Yield values of a wrong type. llama.cpp refuses them when it loads them; a plan would take them for 0."""
    field = header.fields.get(key)
    if field is not None and not isinstance(field.value, types):
        yield f"{key} is {str(field.value)[:32]!r}, which is no number of its kind"


def _range_faults(header: Header, key: str, low: float, high: float) -> Iterator[str]:
    for value in per_layer(header, key):
        if not low <= value <= high:  # false for NaN too
            yield f"{key} is {value}, outside {low} to {high}"
            return


def _expert_faults(header: Header, prefix: str) -> Iterator[str]:
    count = header.integer(prefix + "expert_count") or 0
    used = max(per_layer(header, prefix + "expert_used_count"), default=0)
    groups = header.integer(prefix + "expert_group_count") or 0
    groups_used = header.integer(prefix + "expert_group_used_count") or 0
    if used > count or (count > 0 and used == 0):
        yield f"it uses {used} of {count} experts"
    if groups and groups >= count:
        yield f"it puts {count} experts into {groups} groups"
    if groups > 1 and (count % groups or not 0 < groups_used < groups):
        yield f"it uses {groups_used} of {groups} groups of {count} experts"
    n_layers = header.integer(prefix + "block_count")
    if n_layers is not None and (header.integer(prefix + "nextn_predict_layers") or 0) > n_layers:
        yield "it predicts with more layers than it has"


def _attention_faults(header: Header, prefix: str) -> Iterator[str]:
    heads = per_layer(header, prefix + "attention.head_count")
    kv_heads = per_layer(header, prefix + "attention.head_count_kv") or heads
    width = header.integer(prefix + "embedding_length") or 0
    if not heads:
        return
    n_layers = max(len(heads), len(kv_heads))
    for n_heads, n_kv in zip(_spread(heads, n_layers), _spread(kv_heads, n_layers), strict=False):
        if n_kv and n_heads % n_kv:
            yield f"its {n_heads} attention heads cannot share {n_kv} key-value heads"
            return
    if heads[0] and header.integer(prefix + "attention.key_length") is None and width < heads[0]:
        yield f"its {heads[0]} attention heads do not fit an embedding of {width}"
    if (header.integer(prefix + "rope.dimension_count") or 0) % 2:
        yield "its rope dimensions are an odd number"


def _spread(values: list[float], n_layers: int) -> list[float]:
    return values * n_layers if len(values) == 1 else values
