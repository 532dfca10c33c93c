"""What a model loses when one of its tensors gets another type: one measurement, carried over to all types. Pure.

Owns that model of loss and its form in JSON. Knows nothing of how it was measured.

The divergence that errors in one tensor cause grows with their square as long as they are small, and those of several
tensors add up. On the guide the ratio of divergence to squared error was the same for Q2_K and for Q5_K within a
quarter, tensor by tensor, while it differed between tensors by a factor of 600.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PROBES", "Sensitivity"]

PROBES = ("Q4_K", "Q4_0")  # what a tensor is bent into to be measured: the first that its rows fit


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A tensor's: with it alone in type `probe` the model diverges by `kld`, in nats a token.

    `distortions` has the squared error of each type that the tensor may become, and of the probe.
    """

    name: str
    probe: str
    kld: float
    distortions: Mapping[str, float]

    def loss(self, kind: str) -> float:
        """Return the divergence that `kind`, one of `distortions`, is expected to cause."""
        bent = self.distortions[self.probe]
        return self.kld * self.distortions[kind] / bent if bent else 0.0
