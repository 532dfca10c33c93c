from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.cli.verbs.plan import warn_if_busy
from app.engine.load.type_tables import TypeTables, host_key
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement, TuneFile, tune_key
from offload.speed.type_costs import ProductCost, TypeCost
from quantizer.gguf.header import read_header
from tests.app.cli.in_process import run_localllm


@pytest.mark.parametrize("busy_percent", [0.0, 3.0, 15.0])
def test_a_machine_at_rest_is_measured_without_a_word(
    busy_percent: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda _interval_s: busy_percent)
    warn_if_busy()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_busy_machine_is_warned_of_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda _interval_s: 62.4)
    warn_if_busy()
    said = capsys.readouterr()
    assert said.out == ""
    assert "Other programs use 62 % of this machine's processors" in said.err


def _measured(speed: float, *, is_fused: bool) -> SpeedMeasurement:
    setting = RuntimeSettings(n_threads=2, flash_attention=is_fused, extra_buffers=False)
    return SpeedMeasurement(setting, 100.0 * speed, ((0, 10.0 * speed), (512, 9.0 * speed)), ((16, 4.0),))


@pytest.fixture
def show(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what prints the measurements that it is given, as lines."""
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))

    def lines(*measured: SpeedMeasurement) -> list[str]:
        TuneFile(tmp_path).store(tune_key(read_header(tiny_model)), "tiny", measured)
        return run_localllm(os.environ, "tune", tiny_model, "--show").stdout.splitlines()

    return lines


def test_a_figure_that_a_setting_lacks_leaves_its_place_empty(show: Callable[..., list[str]]) -> None:
    whole, short = _measured(2.0, is_fused=True), _measured(1.0, is_fused=False)
    shown = show(replace(short, decode=short.decode[:1]), whole)
    rows = [line for line in shown if "f16" in line]
    assert [row.rindex("4.00") for row in rows] == [shown[1].rindex("of 16") + 1] * 2


def test_the_fastest_setting_is_marked_where_nothing_is_bold(show: Callable[..., list[str]]) -> None:
    shown = show(_measured(1.0, is_fused=False), _measured(2.0, is_fused=True))
    (marked,) = (line for line in shown if line.lstrip().startswith("* ") and "tokens" not in line)
    assert marked.split()[1] == "fused"
    assert any("* is fastest" in line for line in shown)


_TYPE_COST = TypeCost(*(ProductCost(n * 1e-11, 0.0) for n in (4, 3, 2, 1)))


@pytest.fixture
def with_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    slow = replace(_TYPE_COST, many=ProductCost(5e-11, 0.0))
    for kind, cost in (("Q4_1", slow), ("Q4_0", _TYPE_COST), ("Q4_0 repacked", _TYPE_COST)):
        TypeTables(tmp_path).add(host_key(3), kind, cost)
    return tmp_path


def test_measured_types_are_shown_the_fastest_reader_first(with_types: Path) -> None:
    shown = run_localllm(os.environ, "tune", "--types", "--show", "--threads", "3").stdout.splitlines()
    rows = [line.split() for line in shown if line.strip().startswith("Q4")]
    assert [row[0] for row in rows] == ["Q4_0", "Q4_0", "Q4_1"]
    assert (rows[0][-4], rows[2][-4], rows[2][-2]) == ("100.0", "20.0", "25.0")
    data = json.loads(run_localllm(os.environ, "tune", "--types", "--show", "--threads", "3", "--json").stdout)
    assert (data["threads"], len(data["types"])) == (3, 3)
    assert data["types"][-1] == {
        "device": "CPU",
        "type": "Q4_1",
        "path": "as in the file",
        "bits_per_weight": 5.0,
        "reads_512_tps": 20.0,
        "reads_64_tps": 50.0,
        "writes_tps": 25.0,
        "bytes_per_s": 15_625_000_000,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--types", "--show", "--threads", "5"), "No types were measured yet"),
        (("guide", "--types"), "measures this machine, not a model"),
    ],
)
def test_types_need_a_measurement_and_no_model(with_types: Path, arguments: tuple[str, ...], said: str) -> None:
    failed = run_localllm(os.environ, "tune", *arguments)
    assert failed.returncode == 2
    assert said in failed.stderr
