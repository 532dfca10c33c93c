from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.library.local.index import Index, LibraryEntry, forget_missing, list_entries, read_entry
from app.library.local.model_files import ModelRef, stat_model
from app.library.local.resolve import available
from app.settings.settings import Settings
from tests.app.small_models import small_model, small_shards

_LATER_S = 4e9  # seconds since 1970: nobody is copying any more


def _entries(settings: Settings, index: Index, now_s: float = _LATER_S) -> list[LibraryEntry]:
    """All entries of the library, each read if need be."""
    refs = [ref for ref in available(settings) if not ref.place]
    forget_missing(settings.models_dir, index)
    return [entry if entry.is_read else read_entry(entry, index, now_s) for entry in list_entries(refs, index)]


@pytest.fixture
def library(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def test_a_file_that_was_dropped_in_appears_and_is_read_once(library: Settings) -> None:
    small_model(library.models_dir / "me" / "x" / "m.gguf", "Dropped")
    with Index(library.cache_dir) as index:
        [entry] = _entries(library, index)
        assert entry.facts is not None
        assert entry.facts.name == "Dropped"
        assert [entry.is_read for entry in list_entries([entry.ref], index)] == [True]


def test_a_changed_file_is_read_again(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf", "Before")
    with Index(library.cache_dir) as index:
        _entries(library, index)
        small_model(path, "After!")
        [entry] = _entries(library, index)
        assert entry.facts is not None
        assert entry.facts.name == "After!"


def test_a_vanished_file_leaves_the_index(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    with Index(library.cache_dir) as index:
        _entries(library, index)
        path.unlink()
        assert _entries(library, index) == []
        assert index.paths() == set()


def test_what_is_known_of_a_library_stays_while_its_disk_is_away(library: Settings, tmp_path: Path) -> None:
    small_model(library.models_dir / "me" / "x" / "m.gguf")
    with Index(library.cache_dir) as index:
        before = _entries(library, index)
        library.models_dir.rename(tmp_path / "away")
        assert _entries(library, index) == []
        (tmp_path / "away").rename(library.models_dir)
        assert list_entries([entry.ref for entry in before], index) == before


def test_what_the_gate_refuses_is_damaged_with_its_reason_and_has_no_facts(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    path.write_bytes(path.read_bytes()[:-9])
    with Index(library.cache_dir) as index:
        _entries(library, index)
        [entry] = _entries(library, index)  # from the index
    assert entry.facts is None
    assert "truncated" in entry.fault


def test_a_file_that_is_being_copied_is_not_damaged_until_it_stays_as_it_is(library: Settings) -> None:
    path = small_model(library.models_dir / "m.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    copied_s = stat_model(path).changed_s
    with Index(library.cache_dir) as index:
        [growing] = _entries(library, index, copied_s + 1)
        [left] = _entries(library, index, copied_s + 60)
        path.write_bytes(whole)
        [complete] = _entries(library, index, copied_s + 1)
    assert (growing.is_arriving, growing.fault, growing.describe().is_arriving) == (True, "", True)
    assert (left.is_arriving, "truncated" in left.fault) == (False, True)
    assert (complete.is_arriving, complete.facts is not None) == (False, True), "at once when it is whole"


def test_a_link_to_nowhere_is_damaged(library: Settings, tmp_path: Path) -> None:
    path = library.models_dir / "me" / "x" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "gone.gguf")
    with Index(library.cache_dir) as index:
        [entry] = _entries(library, index)
    assert "There is no file" in entry.fault


def test_a_split_model_is_one_entry_and_damaged_when_a_part_lacks(library: Settings) -> None:
    paths = small_shards(library.models_dir / "me" / "x" / "big.gguf", 3)
    with Index(library.cache_dir) as index:
        [entry] = _entries(library, index)
        assert entry.facts is not None
        paths[1].unlink()
        [entry] = _entries(library, index)
        assert "00002-of-00003" in entry.fault


def test_models_outside_the_library_stay_in_the_index(library: Settings, tmp_path: Path) -> None:
    other = ModelRef("other", small_model(tmp_path / "elsewhere.gguf"), place="Ollama")
    with Index(library.cache_dir) as index:
        read_entry(*list_entries([other], index), index)
        _entries(library, index)
        assert list_entries([other], index)[0].is_read


class IndexAgainstFolder(RuleBasedStateMachine):
    """Files are added, changed and removed in any order; the index always equals a fresh reading of the folder."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        root = Path(self.root.name)
        self.settings = Settings(data_dir=root / "data", cache_dir=root / "cache")

    def teardown(self) -> None:
        self.root.cleanup()

    @rule(name=st.sampled_from("abc"), title=st.text("xyz", max_size=3))
    def write(self, name: str, title: str) -> None:
        small_model(self.settings.models_dir / "p" / "r" / f"{name}.gguf", title)

    @rule(name=st.sampled_from("abc"))
    def damage(self, name: str) -> None:
        path = self.settings.models_dir / "p" / "r" / f"{name}.gguf"
        if path.exists():
            path.write_bytes(b"GGUX" + path.read_bytes()[4:])

    @rule(name=st.sampled_from("abc"))
    def remove(self, name: str) -> None:
        (self.settings.models_dir / "p" / "r" / f"{name}.gguf").unlink(missing_ok=True)

    @rule()
    def damage_the_index(self) -> None:
        (self.settings.cache_dir / "index.db").write_bytes(b"lost" * 999)
        for suffix in ("-wal", "-shm"):
            (self.settings.cache_dir / f"index.db{suffix}").unlink(missing_ok=True)

    @invariant()
    def index_equals_the_folder(self) -> None:
        with Index(self.settings.cache_dir) as index:
            entries = _entries(self.settings, index)
            assert len(index.paths()) == len(entries)
        fresh_cache = Settings(data_dir=self.settings.data_dir, cache_dir=self.settings.cache_dir / "fresh")
        with Index(fresh_cache.cache_dir) as index:
            index.forget(index.paths())
            assert _entries(fresh_cache, index) == entries


TestIndexAgainstFolder = IndexAgainstFolder.TestCase
TestIndexAgainstFolder.settings = settings(max_examples=15, stateful_step_count=12)
