from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.machine import Survey
from app.engine.load.machine_file import model_key
from app.engine.load.run_history import RunHistory, RunRecord, machine_key, runs_of
from app.library.local.index import LibraryEntry
from app.library.local.model_files import ModelRef, stat_model
from app.library.machine_fit.fit_cache import FitCache
from app.protocol.plan import measured_speed
from app.settings.settings import Settings
from offload.devices.host import CpuTimes, default_threads, host_memory
from offload.speed.cost_model import Work, decode_s
from tests.offload.machines import MACHINES
from tests.quantizer.gguf_files import tiny_llama


class Machine:
    """A machine that counts how often it is looked at."""

    def __init__(self) -> None:
        self.n_looks = 0
        self.is_certain = True

    def survey(self, rpc: Sequence[str]) -> Survey:
        self.n_looks += 1
        return Survey(MACHINES["processor only, 32 GB"], host_memory(), (), self.is_certain)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def cache(machine: Machine, tmp_path: Path) -> FitCache:
    return FitCache(Settings(cache_dir=tmp_path / "cache"), machine.survey)


def entry(path: Path) -> LibraryEntry:
    return LibraryEntry(ModelRef(path.stem, path), stat_model(path))


def test_a_verdict_is_kept_while_the_file_is_as_it_was(cache: FitCache, machine: Machine, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    assert not cache.has(entry(path))
    cache.compute(entry(path))
    known = cache.get(entry(path))
    assert known is not None
    assert known.runs_well
    shutil.copy(path, tmp_path / "other.gguf")
    (tmp_path / "other.gguf").replace(path)
    assert not cache.has(entry(path))
    assert cache.get(entry(path)) is None
    assert machine.n_looks == 1


def test_a_file_that_is_no_model_has_no_verdict_and_is_not_read_again(cache: FitCache, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    cache.compute(entry(path))
    assert cache.has(entry(path))
    assert cache.get(entry(path)) is None


def test_the_machine_is_surveyed_again_on_request(cache: FitCache, machine: Machine, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    cache.compute(entry(path))
    cache.forget()
    assert not cache.has(entry(path))
    cache.compute(entry(path))
    assert machine.n_looks == 2


def test_a_survey_of_a_busy_machine_is_made_again_once_it_is_quiet(machine: Machine, tmp_path: Path) -> None:
    readings = [CpuTimes(0, 0, 0), CpuTimes(1, 0, 0), CpuTimes(10, 1, 1), CpuTimes(20, 11, 1)]
    cache = FitCache(Settings(cache_dir=tmp_path / "cache"), machine.survey, lambda: readings.pop(0))
    machine.is_certain = False
    path = tiny_llama(tmp_path / "tiny.gguf")
    cache.compute(entry(path))
    for _ in range(3):  # the first reading, too soon to say, still busy
        cache.renew()
        assert cache.has(entry(path))
    cache.renew()
    assert not cache.has(entry(path))
    machine.is_certain = True
    cache.compute(entry(path))
    cache.renew()
    assert cache.has(entry(path))
    assert machine.n_looks == 2


def test_the_list_and_the_plan_speak_of_the_same_measured_speed(cache: FitCache, tmp_path: Path) -> None:
    """Also where only answers on a busy machine were measured, and their threads followed it."""
    path = tiny_llama(tmp_path / "tiny.gguf")
    cache.compute(entry(path))
    before, machine = cache.get(entry(path)), cache.here().machine
    assert before is not None
    assert before.measured_tps is None
    run = RunRecord(
        machine=machine_key(machine),
        n_threads=0,
        model=model_key(path),
        kind="decode",
        depth=100,
        tokens_per_s=77.0,
        work=Work(read_bytes={"CPU": 1e9}, n_layers=16),
        others_share=0.9,
    )
    RunHistory(tmp_path / "cache").add([run, replace(run, tokens_per_s=81.0), replace(run, model="another")])
    cache.renew()
    assert not cache.has(entry(path))
    cache.compute(entry(path))
    found, planned = cache.get(entry(path)), measured_speed(runs_of(path, machine, tmp_path / "cache"), 0)
    assert found is not None
    assert (found.measured_tps, planned.decode_tps) == (79.0, 79.0)
    assert (found.decode_tps, planned.is_quiet) == (before.decode_tps, False)


def test_a_verdict_follows_what_answers_taught_about_the_machine(cache: FitCache, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    cache.compute(entry(path))
    before = cache.get(entry(path))
    here = cache.here()
    work = Work(read_bytes={"CPU": 1e9}, n_layers=16)
    run = RunRecord(
        machine=machine_key(here.machine),
        n_threads=default_threads(),
        model="a",
        kind="decode",
        depth=100,
        tokens_per_s=0.25 / decode_s(work, here.rates),
        work=work,
        others_share=0.05,
    )
    RunHistory(tmp_path / "cache").add([run])
    cache.renew()
    assert not cache.has(entry(path))
    cache.compute(entry(path))
    after = cache.get(entry(path))
    assert before is not None
    assert after is not None
    assert before.decode_tps is not None
    assert after.decode_tps is not None
    assert after.decode_tps < before.decode_tps
    assert before.uncertainty == 0.35
    cache.renew()
    assert cache.has(entry(path)), "the same measurements change nothing"
