from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.embedding import EmbedProgress, embed_passages
from app.knowledge.models import marked_passage, marked_question
from app.knowledge.reading import read_folder
from app.knowledge.search import fused, ranked_by_words, search, searched_words, word_expression
from app.knowledge.store import KnowledgeStore
from quantizer.system.errors import UsageError
from tests.app.knowledge.models import EMBEDDER, TopicModels

_FILES = {
    "dinner.txt": "Broth simmers for hours.",
    "tour.txt": "Cycling along the river is best in May.",
    "weather.txt": "Drizzle is likely. The barometer falls.",
    "copy.txt": "Drizzle is likely. The barometer falls.",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Knowledge of four small files, without vectors."""
    top = tmp_path / "top"
    top.mkdir()
    for name, text in _FILES.items():
        (top / name).write_text(text)
        os.utime(top / name, (1_000_000_000, 1_000_000_000))
    with KnowledgeStore(tmp_path / "data") as store:
        list(read_folder(store, store.add_folder(top)))
    return tmp_path / "data"


async def _embed(data_dir: Path, models: TopicModels) -> list[EmbedProgress]:
    with KnowledgeStore(data_dir) as store:
        store.use_embedder(EMBEDDER)
        return [progress async for progress in embed_passages(store, models, EMBEDDER)]


async def _names(data_dir: Path, question: str, models: TopicModels | None = None, **options: object) -> list[str]:
    found = await search(data_dir, question, models, **options)  # type: ignore[arg-type]
    return [hit.passage.path.name for hit in found.hits]


async def test_meaning_finds_what_no_word_finds(data_dir: Path) -> None:
    models = TopicModels()
    assert await _embed(data_dir, models) == [EmbedProgress(4, 4)]
    assert models.embedded[0] == f"copy\n{_FILES['copy.txt']}"
    assert (await _names(data_dir, "velo", models))[0] == "tour.txt"
    assert await _names(data_dir, "velo") == []


async def test_both_searches_together_prefer_what_both_find(data_dir: Path) -> None:
    models = TopicModels()
    await _embed(data_dir, models)
    found = await search(data_dir, "rain and the barometer", models)
    best = found.hits[0]
    assert (best.passage.path.name, best.word_rank, best.vector_rank) == ("copy.txt", 1, 1)
    assert best.score == pytest.approx(1 / 61 + 2 / 61)
    assert found.notices == ()


async def test_a_text_that_is_in_two_files_is_found_once(data_dir: Path) -> None:
    assert await _names(data_dir, "barometer") == ["copy.txt"]


async def test_words_alone_are_said(data_dir: Path) -> None:
    found = await search(data_dir, "barometer")
    assert found.notices[0].startswith("Found by words alone: no embedding model")
    await _embed(data_dir, TopicModels())
    found = await search(data_dir, "barometer", TopicModels("The model is gone."))
    assert (len(found.hits), found.notices) == (1, ("Found by words alone: The model is gone.",))
    assert "cannot be reached" in (await search(data_dir, "barometer")).notices[0]


async def test_passages_that_wait_for_their_vector_are_said(data_dir: Path, tmp_path: Path) -> None:
    await _embed(data_dir, TopicModels())
    (tmp_path / "top" / "new.txt").write_text("Flour and water.")
    with KnowledgeStore(data_dir) as store:
        list(read_folder(store, store.folders()[0]))
    assert "1 passage without a vector" in (await search(data_dir, "flour", TopicModels())).notices[0]


async def test_a_reranker_orders_what_was_found_and_may_fail(data_dir: Path) -> None:
    models = TopicModels()
    await _embed(data_dir, models)
    names = await _names(data_dir, "drizzle along the broth", models, reranker="ranker")
    assert names == ["dinner.txt", "copy.txt", "tour.txt"]
    models.failure = "It is broken."
    found = await search(data_dir, "drizzle along the broth", models, reranker="ranker")
    assert len(found.hits) == 3
    assert found.notices[-1] == "Not reranked: It is broken."


async def test_a_file_that_changed_since_it_was_read_is_marked(data_dir: Path, tmp_path: Path) -> None:
    assert not (await search(data_dir, "broth")).hits[0].has_changed
    (tmp_path / "top" / "dinner.txt").write_text("Other.")
    (hit,) = (await search(data_dir, "broth")).hits
    assert hit.has_changed
    assert hit.place.endswith("dinner.txt [changed since it was read]")


async def test_a_search_without_words_or_folders_says_what_is_missing(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no words"):
        await search(data_dir, " ?! ")
    with pytest.raises(UsageError, match="No folder"):
        await search(tmp_path / "nothing", "soup")


def test_ranks_are_fused_by_their_reciprocals() -> None:
    scores = fused((1.0, [1, 2]), (2.0, [2, 3]))
    assert scores == {2: 1 / 62 + 2 / 61, 3: 2 / 62, 1: 1 / 61}
    assert list(scores) == [2, 3, 1]


async def test_a_long_file_does_not_crowd_out_the_others(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "long.txt").write_text("\n\n".join(f"Broth, part {number}. " + "word " * 180 for number in range(9)))
    (top / "short.txt").write_text("One line about broth. " + "Many other things that nobody asked. " * 20)
    for number in range(30):
        (top / f"other{number}.txt").write_text("Bread and butter.")  # or both words would be common ones
    with KnowledgeStore(tmp_path / "data") as store:
        list(read_folder(store, store.add_folder(top)))
    names = await _names(tmp_path / "data", "broth part", limit=5)
    assert names == ["long.txt", "short.txt", *["long.txt"] * 3]


def test_common_words_count_only_where_there_are_no_others() -> None:
    assert word_expression("How is the soup?") == '"soup"'
    assert word_expression("who is it") == '"who" OR "is" OR "it"'


CSV = "How do I read a CSV file?"


@pytest.mark.parametrize("question", ["And write one?", "what about tabs?", "Can it be sorted?", "How do I undo that?"])
def test_a_question_that_goes_on_is_searched_with_what_it_goes_on_from(question: str) -> None:
    assert searched_words(["What is TOML?", CSV, question]) == f"{question} {CSV}"
    assert searched_words([CSV, question, "And for Windows?"]) == f"And for Windows? {question} {CSV}"
    assert searched_words([question]) == question


@pytest.mark.parametrize(
    "question", ["Bread?", "Delete a directory with everything in it", "Tests that fail first", ""]
)
def test_a_question_that_stands_alone_is_searched_by_itself(question: str) -> None:
    assert searched_words([CSV, question]) == question


def test_what_is_searched_has_a_bound_and_the_newest_words_first() -> None:
    words = searched_words([f"And number {number}?" for number in range(1_000)])
    assert words.startswith("And number 999?")
    assert len(words) <= 2_000


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeStore]:
    with KnowledgeStore(tmp_path_factory.mktemp("data")) as store:
        yield store


@settings(max_examples=50)
@given(st.text(max_size=100))
def test_no_text_is_an_operator_of_the_index(empty_store: KnowledgeStore, typed: str) -> None:
    if word_expression(typed):
        assert ranked_by_words(empty_store, typed, 5) == []


@pytest.mark.parametrize(
    ("model", "question", "passage"),
    [
        ("all-minilm-l6-v2:f16", "soup", "soup"),
        ("nomic-embed-text-v1.5:q8_0", "search_query: soup", "search_document: soup"),
        ("multilingual-e5-base:f16", "query: soup", "passage: soup"),
        ("bge-m3:q8_0", "soup", "soup"),
        ("snowflake-arctic-embed-l-v2.0:f16", "query: soup", "soup"),
    ],
)
def test_each_family_of_embedders_gets_its_marks(model: str, question: str, passage: str) -> None:
    assert (marked_question("soup", model), marked_passage("soup", model)) == (question, passage)
