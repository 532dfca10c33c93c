"""Updates in the background: behind everything else, and only where they may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.knowledge.choices import add_folder
from app.knowledge.store import KnowledgeStore
from app.settings.settings import Settings
from quantizer.system.errors import UsageError
from tests.app.knowledge.models import EMBEDDER, TopicModels, connected
from tests.patience import PATIENCE_S
from tui.knowledge import updater as updater_module
from tui.knowledge.updater import KnowledgeUpdater


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(updater_module, "runs_on_battery", lambda: False)
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


class _Pauses:
    """Sleeps that end at once, up to `n_most`; then the test has seen enough. `slept` are their seconds."""

    def __init__(self, n_most: int) -> None:
        self.slept: list[float] = []
        self._n_most = n_most

    async def __call__(self, seconds: float) -> None:
        if len(self.slept) == self._n_most:
            raise asyncio.CancelledError
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def _looks(updater: KnowledgeUpdater, *, is_on: bool = True, is_busy: bool = False) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_S):
            await updater.look_for_changes(lambda: is_on, lambda: is_busy)


def _add(tmp_path: Path, settings: Settings) -> Path:
    top = tmp_path / "papers"
    top.mkdir()
    (top / "soup.txt").write_text("Broth simmers.")
    with KnowledgeStore(settings.data_dir) as store, store.writing_alone():
        add_folder(store, top, settings)
        store.use_embedder(EMBEDDER)
    return top


def _summary(settings: Settings) -> tuple[int, int, int]:
    with KnowledgeStore(settings.data_dir) as store:
        (summary,) = store.summaries()
    return summary.n_files, summary.n_passages, summary.n_embedded


@pytest.mark.slow
async def test_what_changed_is_read_and_gets_its_vectors(tmp_path: Path, settings: Settings) -> None:
    top, models, pauses = _add(tmp_path, settings), TopicModels(), _Pauses(1)
    updater = KnowledgeUpdater(settings, None, lambda: connected(models), pauses)
    await _looks(updater)
    assert _summary(settings) == (1, 1, 1)
    (top / "stew.txt").write_text("Stew simmers longer.")
    updater = KnowledgeUpdater(settings, None, lambda: connected(models), _Pauses(2))
    await _looks(updater)
    assert _summary(settings) == (2, 2, 2)
    assert len(models.embedded) == 2, "what did not change is not computed again"
    assert (updater.words, updater.note) == ("", "")


@pytest.mark.parametrize("why", ["off", "busy", "battery", "no folders"])
async def test_nothing_is_read_where_something_else_comes_first(
    tmp_path: Path, settings: Settings, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why != "no folders":
        _add(tmp_path, settings)

    def no_child(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be read")

    monkeypatch.setattr(updater_module, "read_folders", no_child)
    monkeypatch.setattr(updater_module, "runs_on_battery", lambda: why == "battery")
    updater = KnowledgeUpdater(settings, None, None, pauses := _Pauses(3))
    await _looks(updater, is_on=why != "off", is_busy=why == "busy")
    assert len(pauses.slept) == 3


@pytest.mark.slow
async def test_the_persons_update_ends_the_one_in_the_background_and_waits_for_none_of_its_own(
    tmp_path: Path, settings: Settings
) -> None:
    top = _add(tmp_path, settings)
    updater = KnowledgeUpdater(settings, None, None)
    await updater.update([top])
    assert updater.is_running
    with pytest.raises(UsageError, match="being updated"):
        await updater.remove(top)
    await updater.stop()
    await updater.update()
    async with asyncio.timeout(PATIENCE_S):
        while updater.is_running:  # noqa: ASYNC110 - it says so to whoever draws, who looks again and again
            await asyncio.sleep(0.01)
    assert "papers: " in updater.note
    assert _summary(settings)[0] == 1
    await updater.remove(top)
    assert await updater.folders() == ()
