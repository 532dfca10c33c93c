from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.knowledge.models import EmbedderIdentity
from app.knowledge.passages import Passage
from app.knowledge.store import FILE_NAME, FileRecord, KnowledgeStore
from quantizer.system.errors import StorageError, UsageError
from tests.app.knowledge.models import EMBEDDER, vector_of

_OTHER = EmbedderIdentity("other", 2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KnowledgeStore]:
    with KnowledgeStore(tmp_path / "data") as opened:
        yield opened


def _record(name: str, *texts: str) -> FileRecord:
    passages, begin = [], 0
    for text in texts:
        passages.append(Passage(text, begin, begin + len(text)))
        begin += len(text) + 1
    return FileRecord(name.encode(), begin, 1, "hash", passages=tuple(passages))


def _embed_all(store: KnowledgeStore, embedder: EmbedderIdentity = EMBEDDER) -> list[str]:
    waiting = store.without_vector(0, 100)
    store.put_vectors(embedder, [(passage_id, vector_of(text)) for passage_id, text in waiting])
    return [text for _, text in waiting]


def test_asking_an_empty_store_makes_no_file(store: KnowledgeStore, tmp_path: Path) -> None:
    assert (store.folders(), store.summaries()) == ((), ())
    assert not (tmp_path / "data" / FILE_NAME).exists()


def test_a_folder_is_added_once_and_none_inside_or_around_it(store: KnowledgeStore) -> None:
    folder = store.add_folder(Path("/a/b"))
    assert store.add_folder(Path("/a/b")) == folder
    for path in ("/a/b/c", "/a"):
        with pytest.raises(UsageError):
            store.add_folder(Path(path))
    store.add_folder(Path("/a/bc"))
    assert [str(each.path) for each in store.folders()] == ["/a/b", "/a/bc"]


def test_a_passage_that_stays_keeps_its_vector(store: KnowledgeStore) -> None:
    folder = store.add_folder(Path("/a"))
    store.use_embedder(EMBEDDER)
    store.put(folder, [_record("soup.txt", "broth", "salt")])
    assert _embed_all(store) == ["soup\nbroth", "soup\nsalt"]
    store.put(folder, [_record("soup.txt", "water", "salt")])
    assert _embed_all(store) == ["soup\nwater"]


def test_another_embedder_takes_all_vectors_away(store: KnowledgeStore) -> None:
    folder = store.add_folder(Path("/a"))
    store.put(folder, [_record("soup.txt", "broth", "salt")])
    assert store.use_embedder(EMBEDDER) == 0
    _embed_all(store)
    assert store.use_embedder(EMBEDDER) == 0
    assert store.n_without_vector() == 0
    assert store.use_embedder(_OTHER) == 2
    assert store.n_without_vector() == 2
    with pytest.raises(StorageError, match="Another embedding model"):
        store.put_vectors(EMBEDDER, [(1, vector_of("a"))])


def test_the_vector_of_a_passage_that_is_gone_is_left_out(store: KnowledgeStore) -> None:
    store.use_embedder(EMBEDDER)
    store.put_vectors(EMBEDDER, [(7, vector_of("a"))])
    assert list(store.vectors()) == []


def test_a_removed_folder_leaves_no_word_behind(store: KnowledgeStore, tmp_path: Path) -> None:
    folder = store.add_folder(Path("/a"))
    other = store.add_folder(Path("/b"))
    store.use_embedder(EMBEDDER)
    store.put(folder, [_record("soup.txt", "Xylophonquark")])
    store.put(other, [_record("bread.txt", "flour")])
    _embed_all(store)
    store.remove_folder(folder)
    assert store.with_words('"xylophonquark"', (1, 1, 1), 5) == []
    assert len(store.with_words('"flour"', (1, 1, 1), 5)) == 1
    (summary,) = store.summaries()
    assert (summary.n_files, summary.n_passages, summary.n_embedded) == (1, 1, 1)
    with store._database.writing() as connection:
        connection.execute("DELETE FROM embedder")
    store._database.close()
    with KnowledgeStore(tmp_path / "data") as opened, opened._database.reading() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = b"".join(path.read_bytes() for path in (tmp_path / "data").glob(f"{FILE_NAME}*"))
    assert b"xylophon" not in data.lower()


def test_files_that_are_gone_go_with_what_derives_from_them(store: KnowledgeStore) -> None:
    folder = store.add_folder(Path("/a"))
    store.put(folder, [_record("soup.txt", "broth"), _record("bread.txt", "flour")])
    known = store.known_files(folder)
    store.put(folder, (), [known[b"soup.txt"].id])
    assert store.with_words('"broth"', (1, 1, 1), 5) == []
    assert set(store.known_files(folder)) == {b"bread.txt"}


def test_only_one_process_changes_the_knowledge(store: KnowledgeStore, tmp_path: Path) -> None:
    with (
        store.writing_alone(),
        KnowledgeStore(tmp_path / "data") as other,
        pytest.raises(StorageError, match="Another process"),
        other.writing_alone(timeout_s=0),
    ):
        pass
    with (
        store.writing_alone(),
        KnowledgeStore(tmp_path / "data") as other,
        pytest.raises(StorageError, match="Another process"),
        other.writing_alone(timeout_s=0),
    ):
        pass
    with store.writing_alone():
        pass
