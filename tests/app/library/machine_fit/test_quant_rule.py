from __future__ import annotations

import pytest

from app.library.machine_fit.planning import Fit
from app.library.machine_fit.quant_rule import Candidate, choose_quant
from offload.placement.assessment import FitLevel

FITS, PARTIAL, WONT_RUN = FitLevel.FITS, FitLevel.PARTIAL, FitLevel.WONT_RUN
BITS = {"F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.6, "Q4_K_M": 4.85, "UD-Q4_K_XL": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.0}


def candidate(name: str, verdict: FitLevel, decode_tps: float | None) -> Candidate:
    n_bytes = int(BITS[name] * 1e9 / 8)
    return Candidate(name, n_bytes, 10**9, Fit(verdict, decode_tps, 0.35, n_bytes, 8192))


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        # quick enough: the most bits, but no more than anyone notices
        ([("F16", FITS, 40), ("Q8_0", FITS, 70), ("Q4_K_M", FITS, 120)], "Q8_0"),
        ([("Q8_0", FITS, 10), ("Q6_K", FITS, 13), ("Q4_K_M", FITS, 18)], "Q6_K"),
        ([("Q8_0", PARTIAL, 30), ("Q4_K_M", FITS, 90)], "Q4_K_M"),
        # a slow machine does not go below four bits to be quicker
        ([("Q8_0", FITS, 3), ("Q4_K_M", FITS, 5), ("Q2_K", FITS, 8)], "Q4_K_M"),
        ([("UD-Q4_K_XL", FITS, 4.9), ("Q4_K_M", FITS, 5)], "UD-Q4_K_XL"),
        # a small one does
        ([("Q4_K_M", PARTIAL, 5), ("Q3_K_M", FITS, 9), ("Q2_K", FITS, 12)], "Q3_K_M"),
        ([("Q4_K_M", PARTIAL, 5), ("Q2_K", PARTIAL, 8)], "Q2_K"),
        # what nobody can tell is no reason against
        ([("Q8_0", FITS, None), ("Q4_K_M", FITS, None)], "Q8_0"),
        ([("F16", FITS, 20)], "F16"),
    ],
)
def test_the_best_quant_is_the_one_that_people_would_take(
    said: list[tuple[str, FitLevel, float | None]], chosen: str
) -> None:
    found = choose_quant([candidate(*each) for each in said])
    assert found is not None
    assert found.name == chosen


def test_where_nothing_runs_nothing_is_chosen() -> None:
    assert choose_quant([candidate("Q4_K_M", WONT_RUN, None)]) is None
    assert choose_quant([]) is None
