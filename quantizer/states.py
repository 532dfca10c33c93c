"""Which layers of a model keep a state of fixed size instead of, or beside, what every token leaves; and how large.

Owns llama.cpp's table of recurrent and hybrid architectures. Knows nothing of keys and values.
Source: `create_memory` in src/llama-model.cpp, `n_embd_r` and `n_embd_s` in src/llama-hparams.cpp and
`load_arch_hparams` in src/models, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantizer.header import Header
from quantizer.hyperparameters import hyperparameter, layer_values

__all__ = ["LayerStates", "states_of"]

_DEFAULT_TOKEN_SHIFTS = 2


@dataclass(frozen=True, slots=True)
class LayerStates:
    """Elements of the state of each layer, 0 where there is none, and for each whether it has attention."""

    elements: tuple[int, ...]
    has_attention: tuple[bool, ...]


# (has a state, has attention) of each layer.
_Kind = tuple[bool, bool]
_Rule = Callable[[Header, int], list[_Kind]]


def states_of(header: Header, n_layers: int) -> LayerStates:
    """Return the states of the `n_layers` layers of a model, prediction layers left out."""
    rule = _RULES.get(header.architecture)
    kinds = rule(header, n_layers) if rule else [(False, True)] * n_layers
    size = _state_elements(header) if rule else 0
    return LayerStates(
        tuple(size if has_state else 0 for has_state, _ in kinds),
        tuple(has_attention for _, has_attention in kinds),
    )


def _all_recurrent(_header: Header, n_layers: int) -> list[_Kind]:
    return [(True, False)] * n_layers


def _all_both(_header: Header, n_layers: int) -> list[_Kind]:
    return [(True, True)] * n_layers


def _without_kv_heads(header: Header, n_layers: int) -> list[_Kind]:
    return [(not n_heads, bool(n_heads)) for n_heads in layer_values(header, "attention.head_count_kv", n_layers)]


def _one_of_three(header: Header, n_layers: int) -> list[_Kind]:
    """A layer of Nemotron-H is a state, attention or a feed-forward."""
    kinds = _without_kv_heads(header, n_layers)
    widths = layer_values(header, "feed_forward_length", n_layers)
    return [(False, False) if width else kind for kind, width in zip(kinds, widths, strict=True)]


def _at_intervals(default: int) -> _Rule:
    """Attention in the last of every so many layers."""

    def rule(header: Header, n_layers: int) -> list[_Kind]:
        if f"{header.architecture}.attention.recurrent_layers" in header.fields:
            values = layer_values(header, "attention.recurrent_layers", n_layers)
            return [(bool(value), not value) for value in values]
        interval = hyperparameter(header, "full_attention_interval") or default
        return [((index + 1) % interval != 0, (index + 1) % interval == 0) for index in range(n_layers)]

    return rule


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), _all_recurrent),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _at_intervals(4)),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _one_of_three),
    **dict.fromkeys(
        ("bailingmoe3", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"),
        _without_kv_heads,
    ),
    "falcon-h1": _all_both,
    "minimax-01": _at_intervals(8),
}


def _state_elements(header: Header) -> int:
    """Return the numbers that one sequence keeps in one layer: those of a convolution, and the state itself."""
    width = hyperparameter(header, "embedding_length")
    n_heads = max(layer_values(header, "attention.head_count", 1))
    if wkv_head := hyperparameter(header, "wkv.head_size"):
        return width * ((hyperparameter(header, "token_shift_count") or _DEFAULT_TOKEN_SHIFTS) + wkv_head)
    if n_cached := hyperparameter(header, "shortconv.l_cache"):
        return width * (n_cached - 1)
    kernel = hyperparameter(header, "ssm.conv_kernel")
    if kda_head := hyperparameter(header, "kda.head_dim"):
        return n_heads * kda_head * (3 * ((kernel or 4) - 1) + kda_head)
    if header.architecture == "minimax-01":
        return n_heads * (hyperparameter(header, "attention.key_length") or width // max(1, n_heads)) ** 2
    inner, state = hyperparameter(header, "ssm.inner_size"), hyperparameter(header, "ssm.state_size")
    n_convolved = inner + 2 * hyperparameter(header, "ssm.group_count") * state
    return max(0, kernel - 1) * n_convolved + state * inner
