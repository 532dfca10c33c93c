"""What a model's metadata say of its rotations, and llama.cpp alone does not follow."""

from __future__ import annotations

import math

from app.engine.llama.native import architecture_of, lib, metadata_text

# parameters of a context, and metadata that llama.cpp 0.3.36 reads for Grok and Mistral 3 only
_RAMP = ("yarn_beta_fast", "yarn_beta_slow")
_MAX_ERROR = 1e-3


def context_params(model: int) -> lib.llama_context_params:
    """Return llama.cpp's default parameters of a context, with the ramp of the YaRN that a loaded model was given."""
    params = lib.llama_context_default_params()
    for name in _RAMP:
        beta = _number(model, f"rope.scaling.{name}")
        if beta and beta > 0:
            setattr(params, name, beta)
    return params


def scales_rotations(model: int) -> bool:
    """Return whether llama.cpp multiplies what it rotates by more or less than one. It would do so again to all keys
    each time that some of them move (`build_rope_shift` in src/llama-kv-cache.cpp, 0.3.36), as ggml's rope takes one
    factor for both. The factor is that of llama_context's constructor."""
    scale = _number(model, "rope.scaling.attn_factor") or 1.0
    factor = _number(model, "rope.scaling.factor") or 1.0
    if _text(model, "rope.scaling.type") == "yarn" and factor > 1:
        architecture, weight = architecture_of(model), _number(model, "rope.scaling.yarn_log_multiplier") or 0.0
        weight *= {"mistral3": 1.0, "deepseek32": 10.0, "deepseek2": 10.0}.get(architecture, 0.0)
        # there the weight counts for both
        own = weight if weight and architecture == "deepseek2" else 1.0
        scale *= (1 + 0.1 * own * math.log(factor)) / (1 + 0.1 * weight * math.log(factor))
    return abs(scale - 1) > _MAX_ERROR


def _number(model: int, key: str) -> float | None:
    try:
        return float(_text(model, key) or "")
    except ValueError:
        return None


def _text(model: int, key: str) -> str | None:
    return metadata_text(model, f"{architecture_of(model)}.{key}")
