"""Muon: momentum whose matrix updates are made orthogonal (Keller Jordan et al., 2024), batched over equal shapes.

On a budget of a few million tokens it learns about twice as much per token as AdamW alone.
torch's own works in bfloat16, which is slow on CPUs without such instructions: this one keeps float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5


class Muon:
    """Steps hidden matrices; embeddings and norms belong to AdamW."""

    def __init__(self, weights: Iterable[Tensor], momentum: float = 0.95) -> None:
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for weight in weights:
            groups[weight.shape].append(weight)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups]
        self._momentum = momentum

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for group, average in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([weight.grad for weight in group if weight.grad is not None])
            average.lerp_(gradient, 1 - self._momentum)
            update = orthogonal(gradient.lerp(average, self._momentum))
            rows, columns = group[0].shape
            scale = learning_rate * max(1.0, rows / columns) ** 0.5
            for weight, change in zip(group, update, strict=True):
                weight.sub_(change, alpha=scale)

    def state(self) -> list[Tensor]:
        return self._momenta

    def load(self, momenta: list[Tensor]) -> None:
        for own, loaded in zip(self._momenta, momenta, strict=True):
            own.copy_(loaded)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [n, rows, columns] with all singular values near one, by Newton-Schulz iteration."""
    a, b, c = QUINTIC
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
