"""The tables of llama.cpp's recipe, file type by file type: which type the tensors of a kind get, and when.

A rule that answers None leaves a tensor what the file type says. Source: as of `quantizer.mix`.
"""

from __future__ import annotations

from collections.abc import Callable

from quantizer.mix_place import Place

__all__ = [
    "ATTENTION_OUTPUT",
    "BETTER_LOW_BIT",
    "DOWN",
    "EMBEDDING",
    "EXEMPT_FROM_IMATRIX",
    "FALLBACK",
    "KEPT_IN_Q8",
    "LOW_BIT",
    "MIXTRAL_OUTPUT_IN_Q5",
    "NEEDS_IMATRIX",
    "OUTPUT_IN_Q5",
    "QUERY_KEY",
    "VALUE",
]

_Rule = Callable[[Place], str | None]
_Rules = dict[str, _Rule]


def _falcon_down(at: Place) -> str:
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
