"""The rule that chooses among the quants of a model, for pull, search and recommend. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.library import Quant
from quantizer.gguf.file_types import FILE_TYPES

__all__ = ["COMFORTABLE_TPS", "NEARLY_AS_FAST", "choose_quant", "keeps_pace", "speed_of"]

COMFORTABLE_TPS = 12.0  # faster than most people read
_GOOD_BITS = 4.2  # IQ4_XS and MXFP4; below it the loss of quality outweighs the gain of speed
_MOST_BITS = 9.0  # above Q8_0 nothing noticeable is gained
NEARLY_AS_FAST = 0.85


def choose_quant(quants: Sequence[Quant], n_parameters: int, pace_tps: float = COMFORTABLE_TPS) -> Quant | None:
    """Return the best quant of a model with `n_parameters`, None if none runs.

    That is the one with the most bits that fits and reaches `pace_tps`; else the best good one that fits and is nearly
    as fast as the fastest of these; else the best small one that fits; else the fastest that runs at all.
    """

    def bits(quant: Quant) -> float:
        known = FILE_TYPES.get(quant.name)  # the type of most weights; of an unknown quant, the average
        return known.base.bits_per_weight if known else 8 * quant.n_bytes / max(1, n_parameters)

    def quality(quant: Quant) -> tuple[float, int]:
        return bits(quant), quant.n_bytes

    running = [quant for quant in quants if quant.fit.verdict != "wont_run"]
    sensible = [quant for quant in running if bits(quant) <= _MOST_BITS] or running
    fitting = [quant for quant in sensible if quant.fit.runs_well]
    good = [quant for quant in fitting if bits(quant) >= _GOOD_BITS]
    if quick := [quant for quant in good if keeps_pace(quant, pace_tps)]:
        return max(quick, key=quality)
    if good:
        enough_tps = NEARLY_AS_FAST * max(map(speed_of, good))
        return max((quant for quant in good if speed_of(quant) >= enough_tps), key=quality)
    if fitting:
        return max(fitting, key=quality)
    return max(sensible, key=speed_of, default=None)


def speed_of(quant: Quant) -> float:
    """Return tokens a second, 0 if unknown."""
    return quant.fit.decode_tps or 0.0


def keeps_pace(quant: Quant, pace_tps: float) -> bool:
    """Return whether `quant` fits and reaches `pace_tps`, or its speed is unknown."""
    return quant.fit.runs_well and (quant.fit.decode_tps is None or quant.fit.decode_tps >= pace_tps)
