"""A verdict in a few words, as lists have room for."""

from __future__ import annotations

from app.library.fit import Fit
from offload.assessment import Verdict
from offload.wording import speed

__all__ = ["fit_words"]

_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "fits tightly",
    Verdict.PARTIAL: "fits in part",
    Verdict.WONT_RUN: "will not run",
}


def fit_words(fit: Fit) -> str:
    """Return such as "fits, 32 tok/s"."""
    pace = "" if fit.decode_tps is None else f", {speed(fit.decode_tps)} tok/s"
    return _VERDICTS[fit.verdict] + pace
