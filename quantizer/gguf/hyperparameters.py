"""Hyperparameters of a GGUF: looking them up, and the ranges that llama.cpp survives.

Source: the assertions of llama.cpp src/llama-model.cpp, llama-hparams.h and the graph operations it builds, as vendored
in llama-cpp-python 0.3.36. Values that it refuses with a message of its own are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header

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
    "attention.indexer.key_length": (1, 65_536),
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
    for suffix, (low, high) in _INTEGER_RANGES.items():
        yield from _value_faults(header, suffix, (int, ArrayRef), low, high)
    for suffix, bounds in _FLOAT_RANGES.items():
        yield from _value_faults(header, suffix, (int, float, ArrayRef), *bounds)
    scaling = header.text(f"{header.architecture}.rope.scaling.type", "none")
    if scaling not in _ROPE_SCALING_TYPES:
        yield f"its rope scaling {scaling[:32]!r} is unknown"
    count = hyperparameter(header, "expert_count")
    used = max(per_layer(header, "expert_used_count"), default=0)
    groups = hyperparameter(header, "expert_group_count")
    groups_used = hyperparameter(header, "expert_group_used_count")
    if used > count or (count > 0 and used == 0):
        yield f"it uses {used} of {count} experts"
    if groups and groups >= count:
        yield f"it divides {count} experts into {groups} groups"
    if groups > 1 and (count % groups or not 0 < groups_used < groups):
        yield f"it uses {groups_used} of {groups} groups of {count} experts"
    n_layers = header.integer(f"{header.architecture}.block_count")
    if n_layers is not None and hyperparameter(header, "nextn_predict_layers") > n_layers:
        yield "it has more prediction layers than layers"
    yield from _attention_faults(header)
    n_deepstack = hyperparameter(header, "n_deepstack_layers")
    if n_deepstack >= (hyperparameter(header, "block_count") or _MAX_LAYERS):  # the last layer takes outputs alone
        yield f"its {n_deepstack} deepstack layers do not all come before its last layer"


def per_layer(header: Header, suffix: str) -> list[float]:
    """Return `<architecture>.<suffix>`, one number or one for each layer, as a list; empty when missing or text."""
    key = f"{header.architecture}.{suffix}"
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
    values = [int(value) for value in per_layer(header, suffix)] or [0]
    return values * n_layers if len(values) == 1 else (values + [0] * n_layers)[:n_layers]


def _value_faults(header: Header, suffix: str, types: tuple[type, ...], low: float, high: float) -> Iterator[str]:
    """Yield a wrong type, which llama.cpp refuses when it loads it and a plan would take for 0, and a wrong value."""
    key = f"{header.architecture}.{suffix}"
    field = header.fields.get(key)
    if field is not None and not isinstance(field.value, types):
        yield f"{key} is {str(field.value)[:32]!r}, which is not a number of the expected type"
    for value in per_layer(header, suffix):
        if not low <= value <= high:  # false for NaN too
            yield f"{key} is {value}, outside {low} to {high}"
            return


def _attention_faults(header: Header) -> Iterator[str]:
    heads = per_layer(header, "attention.head_count")
    kv_heads = per_layer(header, "attention.head_count_kv") or heads
    width = hyperparameter(header, "embedding_length")
    if not heads:
        return
    n_layers = max(len(heads), len(kv_heads))
    spread = (values * n_layers if len(values) == 1 else values for values in (heads, kv_heads))
    for n_heads, n_kv in zip(*spread, strict=False):
        if n_kv and n_heads % n_kv:
            yield f"its {n_heads} attention heads cannot share {n_kv} key-value heads"
            return
    if heads[0] and header.integer(f"{header.architecture}.attention.key_length") is None and width < heads[0]:
        yield f"its {heads[0]} attention heads do not fit an embedding of {width}"
    if hyperparameter(header, "rope.dimension_count") % 2:
        yield "its number of rope dimensions is odd"
