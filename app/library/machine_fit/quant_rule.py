"""The rule that chooses among the quants of a model, for pull, search and recommend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.library.machine_fit.planning import Fit
from offload.placement.assessment import FitLevel
from quantizer.gguf.file_types import FILE_TYPES

__all__ = ["COMFORTABLE_TPS", "NEARLY_AS_FAST", "Candidate", "choose_quant"]

COMFORTABLE_TPS = 12.0  # faster than most people read
_GOOD_BITS = 4.2  # IQ4_XS and MXFP4; below it the loss of quality outweighs the gain of speed
_MOST_BITS = 9.0  # above Q8_0 nothing noticeable is gained
NEARLY_AS_FAST = 0.85


@dataclass(frozen=True, slots=True)
class Candidate:
    """One quant: its name, the bytes to download, the number of weights, and its fit on this machine."""

    name: str
    n_bytes: int
    n_parameters: int
    fit: Fit

    @property
    def bits_per_weight(self) -> float:
        """Bits of the type of most weights; of an unknown quant, the average."""
        known = FILE_TYPES.get(self.name)
        return known.bits_per_weight if known else 8 * self.n_bytes / max(1, self.n_parameters)

    @property
    def decode_tps(self) -> float:
        """Tokens a second, 0 if unknown."""
        return self.fit.decode_tps or 0.0

    def keeps_pace(self, pace_tps: float) -> bool:
        """Return whether it fits and reaches `pace_tps`, or its speed is unknown."""
        return self.fit.runs_well and (self.fit.decode_tps is None or self.fit.decode_tps >= pace_tps)


def choose_quant(candidates: Sequence[Candidate], pace_tps: float = COMFORTABLE_TPS) -> Candidate | None:
    """Return the best candidate, None if none runs.

    That is the one with the most bits that fits and reaches `pace_tps`; else the best good one that fits and is nearly
    as fast as the fastest of these; else the best small one that fits; else the fastest that runs at all.
    """
    running = [candidate for candidate in candidates if candidate.fit.verdict is not FitLevel.WONT_RUN]
    sensible = [candidate for candidate in running if candidate.bits_per_weight <= _MOST_BITS] or running
    fitting = [candidate for candidate in sensible if candidate.fit.runs_well]
    good = [candidate for candidate in fitting if candidate.bits_per_weight >= _GOOD_BITS]
    if quick := [candidate for candidate in good if candidate.keeps_pace(pace_tps)]:
        return max(quick, key=_quality)
    if good:
        return max(_nearly_fastest(good), key=_quality)
    if fitting:
        return max(fitting, key=_quality)
    return max(sensible, key=lambda candidate: candidate.decode_tps, default=None)


def _nearly_fastest(candidates: Sequence[Candidate]) -> list[Candidate]:
    most_tps = max(candidate.decode_tps for candidate in candidates)
    return [candidate for candidate in candidates if candidate.decode_tps >= NEARLY_AS_FAST * most_tps]


def _quality(candidate: Candidate) -> tuple[float, int]:
    return candidate.bits_per_weight, candidate.n_bytes
