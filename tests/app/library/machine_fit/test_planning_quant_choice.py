from __future__ import annotations

import pytest

from app.library.machine_fit.planning import choose_quant
from app.protocol.library import ModelFit, Quant, VerdictName

FITS: VerdictName = "fits"
PARTIAL: VerdictName = "partial"
WONT_RUN: VerdictName = "wont_run"
BITS = {"F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.6, "Q4_K_M": 4.85, "UD-Q4_K_XL": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.0}


def quant(name: str, verdict: VerdictName, decode_tps: float | None) -> Quant:
    n_bytes = int(BITS[name] * 1e9 / 8)
    return Quant(name, n_bytes, ModelFit(verdict, decode_tps, n_bytes))


@pytest.mark.parametrize(
    ("quants", "chosen"),
    [
        # fast enough: the most bits, but none without effect
        ([("F16", FITS, 40), ("Q8_0", FITS, 70), ("Q4_K_M", FITS, 120)], "Q8_0"),
        ([("Q8_0", FITS, 10), ("Q6_K", FITS, 13), ("Q4_K_M", FITS, 18)], "Q6_K"),
        ([("Q8_0", PARTIAL, 30), ("Q4_K_M", FITS, 90)], "Q4_K_M"),
        # a slow machine does not go below four bits to be quicker
        ([("Q8_0", FITS, 3), ("Q4_K_M", FITS, 5), ("Q2_K", FITS, 8)], "Q4_K_M"),
        ([("UD-Q4_K_XL", FITS, 4.9), ("Q4_K_M", FITS, 5)], "UD-Q4_K_XL"),
        # a small one does
        ([("Q4_K_M", PARTIAL, 5), ("Q3_K_M", FITS, 9), ("Q2_K", FITS, 12)], "Q3_K_M"),
        ([("Q4_K_M", PARTIAL, 5), ("Q2_K", PARTIAL, 8)], "Q2_K"),
        # an unknown speed is no reason against
        ([("Q8_0", FITS, None), ("Q4_K_M", FITS, None)], "Q8_0"),
        ([("F16", FITS, 20)], "F16"),
    ],
)
def test_the_best_quant_is_chosen(quants: list[tuple[str, VerdictName, float | None]], chosen: str) -> None:
    found = choose_quant([quant(*each) for each in quants], 10**9)
    assert found is not None
    assert found.name == chosen


def test_no_quant_is_chosen_if_none_runs() -> None:
    assert choose_quant([quant("Q4_K_M", WONT_RUN, None)], 10**9) is None
    assert choose_quant([], 10**9) is None
