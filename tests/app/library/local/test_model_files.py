from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.library.local.model_files import identity_of, model_paths, parts_of, stat_model
from tests.app.small_models import small_model, small_shards


def test_models_are_files_three_levels_down_in_order_of_name(tmp_path: Path) -> None:
    wanted = [small_model(tmp_path / name) for name in ("a/x/2.gguf", "a/x/10.gguf", "b/y/1.gguf")]
    for other in ("loose.gguf", "a/too-high.gguf", "a/x/deep/er.gguf", "a/x/notes.txt", "a/x/.hidden.gguf"):
        small_model(tmp_path / other)
    assert model_paths(tmp_path) == sorted(wanted)


def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path) -> None:
    assert model_paths(tmp_path / "nowhere") == []


def test_a_split_model_is_its_first_file_and_has_all_as_parts(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "a" / "x" / "big.gguf", 3)
    assert model_paths(tmp_path) == paths[:1]
    assert parts_of(paths[0]) == tuple(paths)
    assert stat_model(paths[0]).n_bytes == sum(path.stat().st_size for path in paths)


def test_a_model_is_the_same_by_every_link_to_all_of_its_files_and_no_copy_of_it_is(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "big.gguf", 3)
    for path in paths:
        for folder, make in (("hard", os.link), ("soft", os.symlink), ("copied", shutil.copy)):
            (tmp_path / folder).mkdir(exist_ok=True)
            make(path, tmp_path / folder / path.name)
    own, hard, soft, copied = (
        identity_of(folder / paths[0].name)
        for folder in (tmp_path, tmp_path / "hard", tmp_path / "soft", tmp_path / "copied")
    )
    assert own == hard == soft != copied
    (tmp_path / "hard" / paths[2].name).unlink()
    assert identity_of(tmp_path / "hard" / paths[0].name) != own, "one of its files is missing"


@pytest.mark.parametrize("name", ["m-00002-of-00003.gguf", "m-00001-of-99999.gguf", "m.gguf"])
def test_another_part_than_the_first_is_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    assert parts_of(tmp_path / name) == (tmp_path / name,)


def _touched_back(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.skipif(os.name == "nt", reason="Windows tells no time of change")
def test_a_change_shows_even_where_its_time_was_set_back(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    before = stat_model(path)
    _touched_back(path)
    after = stat_model(path)
    assert (after.n_bytes, after.modified_s) == (before.n_bytes, before.modified_s)
    assert after.stamp != before.stamp


def test_a_missing_part_shows(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "big.gguf", 2)
    before = stat_model(paths[0])
    paths[1].unlink()
    assert stat_model(paths[0]).stamp != before.stamp
