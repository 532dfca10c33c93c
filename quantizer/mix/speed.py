"""What the tensors of a mix take on a machine, from the seconds of each type that were measured there.

Independent of how they were measured, and of how types are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_EMBEDDING, _OUTPUT, _EXPERTS = "token_embd.weight", "output.weight", "_exps."
# What a choice weighs for one token of an answer: a token of a prompt as much as it takes (a chat reads more than it
# writes, but all at once), and a byte about a fortieth of the time that reading it takes: it costs memory and disk.
_PROMPT_TOKENS = 1.0
_BYTE_S = 1e-12


@dataclass(frozen=True, slots=True)
class TypeSeconds:
    """Seconds for each weight and each row of a matrix of one type: of a token of an answer, and of a prompt."""

    answer_weight_s: float
    answer_row_s: float
    prompt_weight_s: float
    prompt_row_s: float


@dataclass(frozen=True, slots=True)
class MixSpeeds:
    """The seconds of each type here, and what a token of an answer and of a prompt takes beside weights. A token reads
    `expert_share` of the experts."""

    types: Mapping[str, TypeSeconds]
    fixed_s: float
    prompt_fixed_s: float
    expert_share: float = 1.0

    def answer_s(self, name: str, kind: str, shape: Sequence[int], *, is_tied: bool) -> float:
        """Return the seconds of the tensor `name` in type `kind` for a token of an answer."""
        if name == _EMBEDDING and not is_tied:
            return 0.0  # one row of it is read
        known, n_weights, n_rows = self._known(kind), math.prod(shape), math.prod(shape[1:])
        return self._share(name) * (n_weights * known.answer_weight_s + n_rows * known.answer_row_s)

    def prompt_s(self, name: str, kind: str, shape: Sequence[int]) -> float:
        """Return the seconds of a tensor for each token of a prompt, of which the last one alone has an output."""
        if name in (_EMBEDDING, _OUTPUT):
            return 0.0
        known, n_weights, n_rows = self._known(kind), math.prod(shape), math.prod(shape[1:])
        return self._share(name) * (n_weights * known.prompt_weight_s + n_rows * known.prompt_row_s)

    def weight(self, name: str, kind: str, shape: Sequence[int], n_bytes: int, *, is_tied: bool) -> float:
        """Return what a choice weighs, in seconds."""
        answer_s = self.answer_s(name, kind, shape, is_tied=is_tied)
        return answer_s + _PROMPT_TOKENS * self.prompt_s(name, kind, shape) + _BYTE_S * n_bytes

    def token_s(self, tensors: Iterable[tuple[str, str, Sequence[int]]], *, is_tied: bool) -> tuple[float, float]:
        """Return the seconds of a token of an answer and of a prompt for all `tensors`: name, type and shape."""
        answer_s, prompt_s = self.fixed_s, self.prompt_fixed_s
        for name, kind, shape in tensors:
            if len(shape) > 1:  # norms and biases are steps between products
                answer_s += self.answer_s(name, kind, shape, is_tied=is_tied)
                prompt_s += self.prompt_s(name, kind, shape)
        return answer_s, prompt_s

    def _known(self, kind: str) -> TypeSeconds:
        """Return the seconds of `kind`; one that was not measured counts as the slowest."""
        return self.types.get(kind) or max(self.types.values(), key=lambda each: each.answer_weight_s)

    def _share(self, name: str) -> float:
        return self.expert_share if _EXPERTS in name else 1.0
