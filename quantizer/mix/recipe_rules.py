"""The tables of llama.cpp's recipe, file type by file type: the type of each category of tensors, and when; and the
position of a tensor that the rules depend on. Pure.

A rule that returns None leaves a tensor the type of the file type. Source: as of `quantizer.mix.recipe`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    *("ATTENTION_OUTPUT", "BETTER_LOW_BIT", "DOWN", "EMBEDDING", "EXEMPT_FROM_IMATRIX", "FALLBACK", "KEPT_IN_Q8"),
    *("LARGE_GQA", "LOW_BIT", "MIXTRAL_OUTPUT_IN_Q5", "NEEDS_IMATRIX", "OUTPUT_IN_Q5", "QUERY_KEY", "VALUE"),
    *("ModelShape", "TensorPosition"),
]

LARGE_GQA = 4
_MIXTRAL_EXPERTS = 8
# (architecture, layers) that llama.cpp takes for a 70B model; a llama must also share key-value heads
_SEVENTY_B = {("llama", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The few hyperparameters that the recipe needs."""

    architecture: str
    n_layers: int
    n_heads: int = 0
    n_kv_heads: int = 0
    n_experts: int = 0

    @property
    def n_gqa(self) -> int:
        """Query heads for each key-value head."""
        return self.n_heads // self.n_kv_heads if self.n_kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """The one model size that llama.cpp treats apart."""
        is_shared = self.architecture != "llama" or self.n_heads != self.n_kv_heads
        return is_shared and (self.architecture, self.n_layers) in _SEVENTY_B


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """The position of a tensor in its model: the `ordinal`-th of `count` of its category."""

    ordinal: int
    count: int
    shape: ModelShape
    has_imatrix: bool

    @property
    def is_early(self) -> bool:
        return self.ordinal < self.count // 8

    @property
    def wants_more_bits(self) -> bool:
        """The first and last eighth, and every third in between."""
        eighth = self.count // 8
        return self.is_early or self.ordinal >= 7 * self.count // 8 or (self.ordinal - eighth) % 3 == 2

    @property
    def is_large_gqa(self) -> bool:
        return self.shape.n_gqa >= LARGE_GQA

    @property
    def is_falcon(self) -> bool:
        return self.shape.architecture == "falcon"

    @property
    def is_mixtral(self) -> bool:
        return self.shape.n_experts == _MIXTRAL_EXPERTS


_Rule = Callable[[TensorPosition], str | None]
_Rules = dict[str, _Rule]


def _falcon_down(at: TensorPosition) -> str:
    if at.ordinal < at.count // 16:
        return "Q6_K"
    return "Q5_K" if at.wants_more_bits else "Q4_K"


def _always(name: str) -> _Rule:
    return lambda _at: name


# Kept at 8 bits or more by name, whatever the file type
KEPT_IN_Q8 = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
LOW_BIT = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"}
BETTER_LOW_BIT = {"IQ2_S", "IQ2_M"}
OUTPUT_IN_Q5 = LOW_BIT | {"IQ3_XXS"}

EMBEDDING = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "Q4_K"),
}

VALUE: _Rules = {
    "Q2_K": lambda at: "Q4_K" if at.is_large_gqa else "Q3_K",
    "Q2_K_S": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_XXS": lambda at: "Q4_K" if at.is_large_gqa else None if at.has_imatrix else "IQ3_S",
    "IQ3_XS": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_S": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_M": _always("Q4_K"),
    "Q3_K_M": lambda at: "Q5_K" if at.ordinal < 2 else "Q4_K",
    "Q3_K_L": _always("Q5_K"),
    "IQ4_NL": lambda at: "Q5_K" if at.is_large_gqa else None,
    "IQ4_XS": lambda at: "Q5_K" if at.is_large_gqa else None,
    "Q4_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q4_K_S": lambda at: "Q5_K" if at.ordinal < 4 else None,
}

DOWN: _Rules = {
    "Q2_K": _always("Q3_K"),
    "Q2_K_S": lambda at: "Q4_K" if at.is_early else None,
    "IQ3_XXS": lambda at: None if at.has_imatrix else "Q4_K" if at.is_early else "Q3_K",
    "Q3_K_M": lambda at: (
        "Q5_K" if at.ordinal < at.count // 16 else "Q4_K" if not at.is_falcon or at.wants_more_bits else "Q3_K"
    ),
    "IQ3_M": lambda at: "Q4_K" if at.is_early or (at.is_mixtral and at.wants_more_bits) else None,
    "Q3_K_L": lambda at: "Q4_K" if at.is_falcon else "Q5_K",
    "Q4_K_M": lambda at: _falcon_down(at) if at.is_falcon else "Q6_K" if at.wants_more_bits else None,
    "IQ4_NL": lambda at: "Q5_K" if at.is_early and not at.has_imatrix else None,
    "IQ4_XS": lambda at: "Q5_K" if at.is_early and not at.has_imatrix else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q4_K_S": lambda at: "Q5_K" if at.is_early and not at.is_falcon else None,
    "Q4_0": lambda at: "Q4_1" if at.has_imatrix and at.is_early else None,
    "Q5_0": lambda at: "Q5_1" if at.has_imatrix and at.is_early else None,
}

ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
MIXTRAL_OUTPUT_IN_Q5 = {
    *("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL"),
    *("Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS"),
}
QUERY_KEY = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}

# A type whose block does not divide the row -> the next best with smaller blocks; what then still fails becomes F16.
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
NEEDS_IMATRIX = {"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"}
EXEMPT_FROM_IMATRIX = {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"}
