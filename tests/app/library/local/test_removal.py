from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.engine.load.draft_copy import copy_metadata, copy_path
from app.library.local.model_files import ModelRef
from app.library.local.model_sampling import write_generation_config
from app.library.local.removal import plan_removal, remove
from app.library.local.resolve import available, resolve
from app.settings.settings import Settings
from quantizer.system.errors import UsageError
from tests.app.small_models import small_model, small_shards
from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture
def library(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def _remove(name: str, library: Settings) -> int:
    removal = plan_removal(resolve(name, library), library.models_dir)
    remove(removal, library.models_dir)
    return removal.n_bytes_freed


def test_a_model_goes_with_the_folders_that_become_empty(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    n_bytes = path.stat().st_size
    assert _remove("m", library) == n_bytes
    assert list(library.models_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["m.gguf", "me/m.gguf", "me/x/Q4_K_M/m.gguf"])
def test_a_model_at_any_depth_goes_and_the_models_folder_stays(library: Settings, name: str) -> None:
    small_model(library.models_dir / name)
    _remove("m", library)
    assert list(library.models_dir.iterdir()) == []


def test_the_draft_heads_of_a_folder_go_with_its_last_model(library: Settings) -> None:
    folder = library.models_dir / "me" / "x"
    for name in ("m-Q4_0", "m-Q8_0", "dflash-m", "m-eagle3-Q8_0"):
        small_model(folder / f"{name}.gguf")
    _remove("m-q4_0", library)
    assert sorted(path.name for path in folder.iterdir()) == ["dflash-m.gguf", "m-Q8_0.gguf", "m-eagle3-Q8_0.gguf"]
    _remove("m-eagle3-Q8_0", library)
    assert sorted(path.name for path in folder.iterdir()) == ["dflash-m.gguf", "m-Q8_0.gguf"]
    _remove("m-q8_0", library)
    assert list(library.models_dir.iterdir()) == []


def test_the_projector_of_a_folder_goes_with_its_last_model(library: Settings) -> None:
    folder = library.models_dir / "me" / "x"
    for name in ("m-Q4_0", "m-Q8_0", "mmproj-m-F16"):
        small_model(folder / f"{name}.gguf")
    _remove("m-q4_0", library)
    assert sorted(path.name for path in folder.iterdir()) == ["m-Q8_0.gguf", "mmproj-m-F16.gguf"]
    _remove("m-q8_0", library)
    assert list(library.models_dir.iterdir()) == []


def test_models_that_go_together_take_their_heads_once(library: Settings) -> None:
    paths = [small_model(library.models_dir / "me" / "x" / f"{name}.gguf") for name in ("a", "b", "dspark-a")]
    a, b = (resolve(name, library) for name in ("a", "b"))
    assert plan_removal(a, library.models_dir).paths == (str(paths[0]),)
    assert plan_removal(b, library.models_dir, [a.path]).paths == (str(paths[1]), str(paths[2]))


def test_a_folder_with_anything_else_in_it_stays(library: Settings) -> None:
    small_model(library.models_dir / "me" / "x" / "m.gguf")
    notes = library.models_dir / "me" / "x" / "README.md"
    notes.write_text("mine")
    _remove("m", library)
    assert notes.read_text() == "mine"


def test_all_files_of_a_split_model_go_and_no_other(library: Settings) -> None:
    small_shards(library.models_dir / "me" / "x" / "big.gguf", 3)
    others = small_shards(library.models_dir / "me" / "x" / "big.gguf", 2)
    _remove("big-00001-of-00003", library)
    assert sorted(library.models_dir.glob("*/*/*")) == others


def test_a_link_goes_and_what_it_refers_to_stays(library: Settings, tmp_path: Path) -> None:
    original = small_model(tmp_path / "original.gguf")
    link = library.models_dir / "me" / "x" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(original)
    assert _remove("m", library) == 0
    assert original.exists()
    assert not link.is_symlink()


def test_a_file_with_another_name_frees_nothing(library: Settings, tmp_path: Path) -> None:
    original = small_model(tmp_path / "original.gguf")
    link = library.models_dir / "me" / "x" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.hardlink_to(original)
    assert _remove("m", library) == 0
    assert original.exists()


def test_a_file_behind_a_linked_folder_is_not_ours(library: Settings, tmp_path: Path) -> None:
    path = small_model(tmp_path / "theirs" / "x" / "m.gguf")
    library.models_dir.mkdir(parents=True)
    (library.models_dir / "me").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="is not in the library itself"):
        _remove("m", library)
    assert path.exists()


@pytest.mark.parametrize("name", ["guide", "PATH"])
def test_what_is_not_in_the_library_is_refused(library: Settings, tmp_path: Path, name: str) -> None:
    path = small_model(tmp_path / "loose.gguf")
    with pytest.raises(UsageError):
        _remove(name.replace("PATH", str(path)), library)
    assert path.exists()


def test_a_model_of_another_program_is_refused(library: Settings, tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="belongs to Ollama"):
        plan_removal(ModelRef("m", path, "ollama/m", "Ollama"), library.models_dir)


class NothingOutsideGoes(RuleBasedStateMachine):
    """Files, links and linked folders in any arrangement: removing all that can be removes nothing outside."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.library = Settings(data_dir=self.root / "data", cache_dir=self.root / "cache")
        self.outside = [small_model(self.root / "outside" / "r" / f"{name}.gguf") for name in "ab"]
        self.library.models_dir.mkdir(parents=True)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _place(self, publisher: str, repo: str, name: str) -> Path | None:
        folder = self.library.models_dir / publisher / repo
        if folder.resolve().is_relative_to(self.root / "outside"):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.gguf"
        path.unlink(missing_ok=True)
        return path

    @rule(publisher=st.sampled_from("pq"), repo=st.sampled_from("rs"), name=st.sampled_from("ab"))
    def write(self, publisher: str, repo: str, name: str) -> None:
        if path := self._place(publisher, repo, name):
            small_model(path)

    @rule(publisher=st.sampled_from("pq"), name=st.sampled_from("ab"), which=st.integers(0, 1), is_hard=st.booleans())
    def link_a_file(self, publisher: str, name: str, which: int, is_hard: bool) -> None:
        if path := self._place(publisher, "r", name):
            (path.hardlink_to if is_hard else path.symlink_to)(self.outside[which])

    @rule(publisher=st.sampled_from("pq"), is_repo=st.booleans())
    def link_a_folder(self, publisher: str, is_repo: bool) -> None:
        path = self.library.models_dir / publisher
        if is_repo and not path.is_symlink():
            path.mkdir(exist_ok=True)
            path /= "linked"
        if not path.exists():
            path.symlink_to(self.root / "outside" / "r" if is_repo else self.root / "outside")

    @rule()
    def remove_all(self) -> None:
        for ref in available(self.library):
            try:
                remove(plan_removal(ref, self.library.models_dir), self.library.models_dir)
            except UsageError:
                assert ref.path.exists()
            else:
                assert not os.path.lexists(ref.path)

    @invariant()
    def what_is_outside_stays(self) -> None:
        assert all(path.is_file() for path in self.outside)
        assert sorted((self.root / "outside" / "r").iterdir()) == self.outside


TestNothingOutsideGoes = NothingOutsideGoes.TestCase
TestNothingOutsideGoes.settings = settings(max_examples=40, stateful_step_count=12)


def test_what_its_makers_recommend_goes_with_a_model(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    write_generation_config(path, b'{"temperature": 0.6}')
    _remove("m", library)
    assert list(library.models_dir.iterdir()) == []


def _copy(model: Path, library: Settings) -> Path:
    path = copy_path(model, "Q2_K", library.cache_dir)
    return tiny_llama(_made(path), lambda writer: [writer.add_string(*row) for row in copy_metadata(model).items()])


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_model_goes_with_the_copies_that_draft_for_it(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    copy = _copy(path, library)
    removal = plan_removal(resolve("m", library), library.models_dir, cache_dir=library.cache_dir)
    assert removal.paths == (str(path), str(copy))
    assert removal.n_bytes_freed == path.stat().st_size + copy.stat().st_size
    remove(removal, library.models_dir)
    assert not copy.exists()
    assert copy.parent.is_dir()


def test_a_model_with_another_name_leaves_its_copies(library: Settings) -> None:
    path = small_model(library.models_dir / "me" / "x" / "m.gguf")
    copy = _copy(path, library)
    os.link(path, path.with_name("n.gguf"))
    removal = plan_removal(resolve("m", library), library.models_dir, cache_dir=library.cache_dir)
    assert str(copy) not in removal.paths
