"""Folders are read by a child process, and vectors come from a thread: both end with their iterator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from app.knowledge.choices import add_folder, choose_embedder, own_folders
from app.knowledge.reading import read_folder
from app.knowledge.store import KnowledgeStore
from app.knowledge.updating import embed_new, read_folders
from app.settings.settings import Settings
from quantizer.system.errors import StorageError, UsageError
from tests.app.knowledge.models import EMBEDDER, TopicModels, connected


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def _add(tmp_path: Path, settings: Settings, n_files: int = 3) -> Path:
    top = tmp_path / "papers"
    top.mkdir()
    for number in range(n_files):
        (top / f"soup{number}.txt").write_text(f"Broth number {number} simmers.")
    with KnowledgeStore(settings.data_dir) as store, store.writing_alone():
        add_folder(store, top, settings)
    return top


@pytest.mark.parametrize("name", ["no/such", "file.txt", "data", "data/below"])
def test_only_folders_of_the_person_are_added(tmp_path: Path, settings: Settings, name: str) -> None:
    (tmp_path / "data" / "below").mkdir(parents=True)
    (tmp_path / "file.txt").write_text("text")
    with KnowledgeStore(settings.data_dir) as store:
        with pytest.raises(UsageError):
            add_folder(store, tmp_path / name, settings)
        assert store.folders() == ()


@pytest.mark.slow
async def test_a_child_reads_folders_and_says_how_far_it_is(tmp_path: Path, settings: Settings) -> None:
    top = _add(tmp_path, settings)
    missing = tmp_path / "gone"
    missing.mkdir()
    with KnowledgeStore(settings.data_dir) as store, store.writing_alone():
        add_folder(store, missing, settings)
    missing.rmdir()
    steps = [step async for step in read_folders(settings.data_dir, (), own_folders(settings), is_behind=True)]
    last = {step.path: step for step in steps}
    assert (last[str(top)].progress.n_read, last[str(top)].problem) == (3, "")
    assert "cannot be read" in last[str(missing)].problem
    with KnowledgeStore(settings.data_dir) as store:
        assert [summary.n_files for summary in store.summaries() if summary.path == str(top)] == [3]
        with store.writing_alone(), pytest.raises(StorageError, match="Another process"):
            _ = [step async for step in read_folders(settings.data_dir, [top], ())]


@pytest.mark.slow
async def test_a_child_that_is_stopped_ends_and_leaves_the_folders_to_others(
    tmp_path: Path, settings: Settings
) -> None:
    top = _add(tmp_path, settings, n_files=400)
    async with aclosing(read_folders(settings.data_dir, [top], ())) as steps:
        async for _ in steps:
            break
    with KnowledgeStore(settings.data_dir) as store, store.writing_alone():
        pass
    assert [step async for step in read_folders(settings.data_dir, [top], ())][-1].progress.n_seen == 400


class _Waiting(TopicModels):
    """Models that compute one batch, and then wait for others for ever."""

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        if self.embedded:
            await asyncio.Event().wait()
        return await super().embed(texts, model)


async def test_vectors_are_made_for_what_has_none_and_closing_ends_it_while_it_waits(
    tmp_path: Path, settings: Settings
) -> None:
    top = _add(tmp_path, settings, n_files=9)
    with KnowledgeStore(settings.data_dir) as store:
        list(read_folder(store, store.folders()[0]))

    async def steps(models: TopicModels) -> list[tuple[int, int]]:
        found = []
        async with aclosing(embed_new(settings.data_dir, lambda: connected(models), EMBEDDER)) as embedding:
            async for step in embedding:
                found.append((step.n_done, step.n_total))
                if isinstance(models, _Waiting):
                    break
        return found

    assert await steps(_Waiting()) == [(4, 9)]
    assert await steps(TopicModels()) == [(4, 5), (5, 5)], "what is stored is not computed again"
    assert await steps(TopicModels()) == []
    with KnowledgeStore(settings.data_dir) as store:
        assert store.n_without_vector() == 0
    assert top.is_dir()


def test_no_model_is_chosen_where_the_settings_want_none_or_the_library_has_none(settings: Settings) -> None:
    assert choose_embedder(None, replace(settings, embedder="none")) is None
    assert choose_embedder(None, settings) is None
