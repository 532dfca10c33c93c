from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.measurement import Measurement, Results, Unmeasured, percentile
from quantizer.system.errors import UsageError


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = Results.of("a", "m", [Measurement("w", "c", "s", (1.0, 2.0)), Unmeasured("x", "", "why")])
    results.save(tmp_path / "a.json")
    assert Results.load(tmp_path / "a.json") == results


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UsageError, match="contains no results"):
        Results.load(tmp_path / "a.json")


@pytest.mark.parametrize(("unit", "gain"), [("tok/s", 2.0), ("s", 0.5), ("MB", 0.5)])
def test_more_is_better_for_rates_only(unit: str, gain: float) -> None:
    assert Measurement("w", "c", unit, (4.0,)).gain_over(Measurement("w", "c", unit, (2.0,))) == gain


def test_a_percentile_interpolates_between_samples() -> None:
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([5.0], 95) == 5.0
