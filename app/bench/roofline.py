"""How near decode comes to what memory allows: bytes read per pass × passes a second, against the bandwidth.

A pass gives one token, or several where a draft was taken. Pure. Knows nothing of how either was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.bench.measurement import Measurement, Results
from offload.bandwidth import ReadBandwidth

__all__ = ["Roofline", "roofline_of", "shallowest_decode"]

_GB = 1e9
_BEYOND_MEMORY = 1.05


@dataclass(frozen=True, slots=True)
class Roofline:
    """Decode at `case`, the shallowest depth, where hardly anything but the weights is read in each pass."""

    label: str
    case: str
    weight_bytes_per_pass: int
    passes_per_s: float
    bandwidth: ReadBandwidth

    @property
    def bytes_per_s(self) -> float:
        return self.weight_bytes_per_pass * self.passes_per_s

    @property
    def share(self) -> float:
        """Bytes read a second over what memory was measured to give."""
        return self.bytes_per_s / self.bandwidth.bytes_per_s

    def __str__(self) -> str:
        limit = self.bandwidth
        beyond = " Weights that small stay in caches, or lie on a GPU." if self.share > _BEYOND_MEMORY else ""
        return (
            f"{self.label}, decode at {self.case}: {self.weight_bytes_per_pass / _GB:.3g} GB of weights"
            f" × {self.passes_per_s:.4g} passes/s = {self.bytes_per_s / _GB:.3g} GB/s, {self.share:.0%}"
            f" of the {limit.bytes_per_s / _GB:.3g} GB/s that {limit.n_threads} threads read here with numpy"
            f" (best of {limit.n_passes} passes over {limit.n_bytes / _GB:.2g} GB).{beyond}"
        )


def shallowest_decode(results: Results) -> Measurement | None:
    """Return decode at the least depth it was measured at, None where it was not."""
    return next((item for item in results.measurements if item.work == "decode"), None)


def roofline_of(label: str, decode: Measurement, weight_bytes_per_pass: int, bandwidth: ReadBandwidth) -> Roofline:
    """Return where `decode` of the server called `label` stands."""
    passes_per_s = decode.value / decode.tokens_per_pass
    return Roofline(label, decode.case, weight_bytes_per_pass, passes_per_s, bandwidth)
