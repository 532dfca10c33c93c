"""What a mix of tensor types should meet: a size or a loss."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target"]

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


@dataclass(frozen=True, slots=True)
class Target:
    """At most `n_bytes` of all files together, or at most `kld` nats a token; 0 for the one that is not asked for."""

    n_bytes: int = 0
    kld: float = 0.0

    @property
    def label(self) -> str:
        """What an output is called after: 4.2GB, kld0.02."""
        if self.kld:
            return f"kld{self.kld:g}"
        unit, n_unit = next((unit for unit in _UNITS if self.n_bytes >= unit[1]), ("B", 1))
        return f"{self.n_bytes / n_unit:.4g}{unit}"
