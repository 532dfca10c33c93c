"""The comparison of two vocabularies: what a draft model must share with the model that it drafts for. Pure.

Independent of where a vocabulary comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Vocabulary", "vocabulary_mismatch"]

# Both figures: common/speculative.cpp @ the llama.cpp vendored in llama-cpp-python 0.3.36.
MAX_SIZE_DIFFERENCE = 128  # of padding within one family of models
N_UNCHECKED = 5  # first ids: special tokens, with different names in models that otherwise agree


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model by id. `begin` and `end` are added around every text, None if nothing is."""

    kind: int
    begin: int | None
    end: int | None
    texts: Sequence[bytes]


def vocabulary_mismatch(target: Vocabulary, draft: Vocabulary) -> str:
    """Return why tokens of `draft` cannot replace those of `target`, as half a sentence; empty if they can."""
    if target.kind != draft.kind:
        return f"its tokenizer is of kind {draft.kind} and not {target.kind}"
    if target.begin != draft.begin:
        return f"it begins texts with token {draft.begin} and not {target.begin}"
    if target.end != draft.end:
        return f"it ends texts with token {draft.end} and not {target.end}"
    if abs(len(target.texts) - len(draft.texts)) > MAX_SIZE_DIFFERENCE:
        return f"it has {len(draft.texts)} tokens and not {len(target.texts)}"
    pairs = list(zip(target.texts, draft.texts, strict=False))[N_UNCHECKED:]
    different = next((index for index, (one, other) in enumerate(pairs, N_UNCHECKED) if one != other), None)
    if different is None:
        return ""
    one, other = (_shown(vocabulary.texts[different]) for vocabulary in (target, draft))
    return f"token {different} is {other} and not {one}"


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
