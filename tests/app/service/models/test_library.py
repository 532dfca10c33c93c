"""The library for requests, over a folder of its own and a machine that a test describes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from app.engine.load.machine import Survey
from app.library.hub.catalogue import Role, read_catalogue
from app.library.hub.selection import recommend_each
from app.library.machine_fit.fit_cache import FitCache
from app.library.machine_fit.planning import PlanningContext, planning_context
from app.protocol.library import Recommendation
from app.service.models.library import LibraryService, Listing
from app.settings.settings import Settings
from offload.devices.host import host_memory
from offload.devices.machine import Machine
from quantizer.system.errors import EngineError
from tests.offload.machines import MACHINES
from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data" / "models").mkdir(parents=True)
    tiny_llama(tmp_path / "data" / "models" / "tiny.gguf")
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


async def _complete(library: LibraryService) -> Listing:
    for _ in range(2000):
        listing = await library.listing(has_external=False)
        if listing.is_complete:
            return listing
        await asyncio.sleep(0.01)
    raise AssertionError("the list never became complete")


async def test_a_machine_that_cannot_be_surveyed_is_tried_once_and_again_on_request(settings: Settings) -> None:
    surveys = []

    def failing(rpc: Sequence[str]) -> Survey:
        surveys.append(rpc)
        raise EngineError("The process that lists GPUs crashed.")

    library = LibraryService(settings, FitCache(settings, failing))
    listing = await _complete(library)
    assert {ref.id: model.fit for ref, model in listing.models}["tiny"] is None
    await _complete(library)
    assert len(surveys) == 1
    await library.listing(has_external=False, is_fresh=True)
    await _complete(library)
    assert len(surveys) == 2
    await library.close()


async def test_headers_are_read_while_a_survey_takes_its_time(settings: Settings) -> None:
    must_end, has_begun = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(_rpc: Sequence[str]) -> Survey:
        loop.call_soon_threadsafe(has_begun.set)
        asyncio.run_coroutine_threadsafe(must_end.wait(), loop).result()
        raise EngineError("It never ended.")

    library = LibraryService(settings, FitCache(settings, slow))
    while not has_begun.is_set():
        await library.listing(has_external=False)
        await asyncio.sleep(0.01)
    tiny_llama(settings.models_dir / "later.gguf")
    facts: set[str] = set()
    while "later" not in facts:  # else this test does not end
        listing = await library.listing(has_external=False)
        facts = {ref.id for ref, model in listing.models if model.architecture}
        await asyncio.sleep(0.01)
    must_end.set()
    await library.close()


@pytest.mark.slow
async def test_recommendations_of_an_old_catalogue_come_with_a_notice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = read_catalogue().dated
    context = planning_context(settings, MACHINES["container of 4 GiB"])
    recommended = recommend_each(read_catalogue().models, Role, context)  # a second of processor time, whatever the day
    monkeypatch.setattr("app.library.hub.selection.recommend_each", lambda *_: recommended)
    for today, is_old in ((dated, False), (date(dated.year + 1, dated.month, 1), True)):
        fit_cache = FitCache(settings)
        monkeypatch.setattr(fit_cache, "renew", lambda: None)
        monkeypatch.setattr(fit_cache, "here", lambda: context)
        library = LibraryService(settings, fit_cache, partial(date, today.year, today.month, today.day))
        found = await library.recommendations()
        assert ("--trending" in found.notice) is is_old
        assert [each.role for each in found.recommendations] == list(Role)
        await library.close()


async def test_recommendations_are_computed_again_only_for_another_machine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Machine] = []

    def recommends(_models: object, _roles: object, here: PlanningContext) -> tuple[Recommendation, ...]:
        asked.append(here.machine)
        return ()

    monkeypatch.setattr("app.library.hub.selection.recommend_each", recommends)
    surveyed = Survey(MACHINES["container of 4 GiB"], host_memory(), ())
    fit_cache = FitCache(settings, lambda _rpc: surveyed)
    library = LibraryService(settings, fit_cache)
    await asyncio.gather(library.recommendations(), library.recommendations())
    assert len(asked) == 1
    fit_cache.forget()
    await library.recommendations()
    assert len(asked) == 2
    await library.close()
