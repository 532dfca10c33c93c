from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.engine.load.machine import Survey
from app.library.local.index import LibraryEntry
from app.library.local.model_files import ModelRef, stat_model
from app.library.machine_fit.fit_cache import FitCache
from app.settings.settings import Settings
from offload.devices.host_memory import host_memory
from tests.offload.machines import MACHINES
from tests.quantizer.gguf_files import tiny_llama


class Machine:
    """A machine that counts how often it is looked at."""

    def __init__(self) -> None:
        self.n_looks = 0

    def survey(self, rpc: Sequence[str]) -> Survey:
        self.n_looks += 1
        return Survey(MACHINES["processor only, 32 GB"], host_memory(), ())


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
