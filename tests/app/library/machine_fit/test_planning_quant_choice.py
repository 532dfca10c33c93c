from __future__ import annotations

import pytest

from app.library.machine_fit.planning import choose_quant
from app.protocol.library import ModelFit, Quant, VerdictName
from quantizer.gguf.tensor_types import FILE_TYPES

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
    assert found.quant.name == chosen
    assert found.reason == ""


def test_no_quant_is_chosen_if_none_runs() -> None:
    assert choose_quant([quant("Q4_K_M", WONT_RUN, None)], 10**9) is None
    assert choose_quant([], 10**9) is None


@pytest.mark.parametrize(
    ("quants", "chosen", "reason"),
    [
        # Q4_1 has more bits, but loses more and reads slowly
        (
            {"Q4_1": (41, 88), "Q4_K_S": (81, 242), "Q3_K_M": (57, 350)},
            "Q4_K_S",
            "Q4_K_S instead of Q4_1: reads 242 instead of 88 tokens a second here.",
        ),
        (
            {"Q5_0": (42, 177), "Q5_K_S": (49, 413)},
            "Q5_K_S",
            "Q5_K_S instead of Q5_0: reads 413 instead of 177 tokens a second here.",
        ),
        ({"Q6_K": (52, 288), "Q5_K_S": (49, 413)}, "Q6_K", ""),  # would lose much more
        ({"Q8_0": (45, 216), "Q6_K": (52, 270)}, "Q8_0", ""),  # a quarter faster is no reason
        ({"Q4_1": (41, 88), "Q4_K_S": (30, 242)}, "Q4_1", ""),  # answers would be slower
        ({"Q4_1": (41, 88), "IQ4_XS": (50, 338)}, "Q4_1", ""),  # of unknown loss
        ({"Q4_1": (41, None), "Q4_K_S": (81, 242)}, "Q4_1", ""),  # not measured
    ],
)
def test_a_type_that_reads_much_faster_and_loses_no_more_is_taken_instead(
    quants: dict[str, tuple[float, float | None]], chosen: str, reason: str
) -> None:
    given = [
        Quant(name, n_bytes, ModelFit(FITS, writes, n_bytes, prefill_tps=reads))
        for name, (writes, reads) in quants.items()
        for n_bytes in (int(FILE_TYPES[name].base.bits_per_weight * 1e9 / 8),)
    ]
    found = choose_quant(given, 10**9)
    assert found is not None
    assert (found.quant.name, found.reason) == (chosen, reason)
