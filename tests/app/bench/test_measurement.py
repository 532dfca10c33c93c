from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from app.bench.measurement import (
    Measurement,
    Results,
    Unmeasured,
    as_json,
    comparison,
    line,
    reasons,
    roofline_of,
    shallowest_decode,
    table,
)
from offload.devices.bandwidth import ReadBandwidth
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


BEFORE = Results.of(
    "old\x1b[31m",
    "m",
    [Measurement("decode", "depth 0", "tok/s", (10.0, 12.0, 11.0)), Measurement("first token", "cold", "s", (3.0,))],
)
AFTER = Results.of(
    "new",
    "m",
    [
        Measurement("decode", "depth 0", "tok/s", (22.0,), "note", tokens_per_pass=2.0),
        Measurement("first token", "cold", "s", (1.5,)),
        Unmeasured("edit", "", "No\ngrammar."),
    ],
)
BANDWIDTH = ReadBandwidth(20e9, n_threads=2, n_bytes=1 << 30, n_passes=6)


def _text(made: Table) -> str:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


def test_a_table_has_medians_and_spread() -> None:
    text = _text(table(BEFORE))
    assert "11 tok/s" in text
    assert "10–12" in text


def test_a_table_has_predictions_beside_measurements() -> None:
    told = BEFORE.with_predictions({("decode", "depth 0"): 9.9})
    assert "9.9 (-10%)" in _text(table(told))
    assert [item["predicted"] for item in as_json([told], [], 1)["results"][0]["measurements"]] == [9.9, None]


def test_two_servers_stand_side_by_side_and_better_is_above_one() -> None:
    text = _text(comparison(BEFORE, AFTER))
    assert all(said in text for said in ("11 tok/s", "22 tok/s", "3 s", "1.5 s"))
    assert text.count("2.00") == 2
    assert "\x1b" not in text


def test_unmeasured_cases_are_listed_with_the_reason() -> None:
    assert reasons(AFTER) == ["new: edit: not measured. No grammar."]
    assert line(AFTER.measurements[0]) == "decode depth 0: 22 tok/s"


def test_the_roofline_counts_passes_and_not_the_tokens_that_drafts_add() -> None:
    decode = shallowest_decode(AFTER)
    assert decode is not None
    roofline = roofline_of("new", decode, weight_bytes_per_pass=1_000_000_000, bandwidth=BANDWIDTH)
    assert (roofline.passes_per_s, roofline.share) == (11.0, pytest.approx(0.55))
    assert "55% of the 20 GB/s that 2 threads read" in str(roofline)
    assert shallowest_decode(Results("none", "m", ())) is None


def test_the_json_holds_samples_medians_gains_and_the_roofline() -> None:
    roofline = roofline_of("new", AFTER.measurements[0], 1_000_000_000, BANDWIDTH)
    data = json.loads(json.dumps(as_json([BEFORE, AFTER], [roofline], seed=7)))
    first, second = data["results"]
    assert first["measurements"][0]["samples"] == [10.0, 12.0, 11.0]
    assert first["measurements"][0]["median"] == 11.0
    assert "gain" not in first["measurements"][0]
    assert [item["gain"] for item in second["measurements"]] == [2.0, 2.0]
    assert second["unmeasured"][0]["work"] == "edit"
    assert data["rooflines"][0]["share"] == pytest.approx(0.55)
