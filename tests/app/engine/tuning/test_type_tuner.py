"""Real products of a few types; no test asserts how fast they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.llama import type_speeds
from app.engine.load.type_tables import TypeTables, host_key
from app.engine.tuning import type_tuner
from app.engine.tuning.tune_results import DISTURBED
from app.engine.tuning.type_tuner import TypeTuneRequest, measure
from app.settings.settings import Settings
from offload.devices.host import CpuTimes
from quantizer.gguf.tensor_types import WEIGHT_TYPES

pytestmark = pytest.mark.slow

FEW = {name: WEIGHT_TYPES[name] for name in ("F16", "Q4_0")}
SMALL = TypeTuneRequest(n_threads=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_speeds, "UNCACHED_BYTES", 4 << 20)
    monkeypatch.setattr(type_speeds, "_MATRIX_WEIGHTS", 1 << 18)
    monkeypatch.setattr(type_speeds, "WEIGHT_TYPES", FEW)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", gpu=False)


def test_each_type_is_stored_as_soon_as_it_is_measured(settings: Settings) -> None:
    tables, found = TypeTables(settings.cache_dir), []
    for measured in measure(settings, SMALL):
        found.append(measured)
        stored = tables.read(host_key(1))
        assert stored.types.get(measured.kind) == measured.cost
        assert stored.graph is not None
    assert {each.kind for each in found} >= set(FEW)
    assert all(each.cost for each in found if each.kind in FEW)


def test_only_what_a_quiet_machine_lacks_is_measured_again(settings: Settings) -> None:
    first = {each.kind: each.cost for each in measure(settings, SMALL)}
    tables = TypeTables(settings.cache_dir)
    for kind, share in (("F16", 0.0), ("Q4_0", 0.9)):
        cost = first[kind]
        assert cost is not None
        tables.add(host_key(1), kind, replace(cost, others_share=share))
    again = {each.kind for each in measure(settings, SMALL, missing_only=True)}
    assert "F16" not in again
    assert "Q4_0" in again


@pytest.mark.parametrize(("idle_s", "status"), [(9.5, 0), (1.0, DISTURBED)])
def test_measuring_in_idle_moments_ends_when_others_compute(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, idle_s: float, status: int
) -> None:
    def times() -> Iterator[CpuTimes]:
        for n in range(1000):
            yield CpuTimes(10.0 * n, idle_s * n, 0.0)

    readings = times()
    monkeypatch.setattr(type_tuner, "load_settings", lambda: settings)
    assert type_tuner._tune_idle(SMALL, lambda: next(readings)) == status
