from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.library.local.model_files import (
    folder_stamp,
    head_paths,
    identity_of,
    model_paths,
    parts_of,
    repo_of,
    stat_model,
)
from tests.app.small_models import small_model, small_shards


def test_models_are_files_at_most_three_folders_down_in_order_of_name(tmp_path: Path) -> None:
    names = ("loose.gguf", "a/one.gguf", "a/x/2.gguf", "a/x/10.gguf", "b/y/1.gguf", "a/x/Q4/deep.gguf", "d.gguf/m.gguf")
    wanted = [small_model(tmp_path / name) for name in names]
    for other in (
        "a/x/Q4/too/deep.gguf",
        "a/x/notes.txt",
        "a/x/.hidden.gguf",
        ".hidden/m.gguf",
        "a/x/.fetching/m.gguf",
    ):
        small_model(tmp_path / other)
    assert model_paths(tmp_path) == sorted(wanted)


def test_a_draft_head_beside_a_model_is_no_model_and_one_alone_is(tmp_path: Path) -> None:
    model, head, mtp = (small_model(tmp_path / "a" / name) for name in ("m-MTP.gguf", "dflash-m.gguf", "mtp-m.gguf"))
    alone = small_model(tmp_path / "b" / "m-eagle3-Q8_0.gguf")
    assert model_paths(tmp_path) == [model, alone]
    assert head_paths(tmp_path) == [head, mtp]
    model.unlink()
    assert model_paths(tmp_path) == [head, mtp, alone]


def test_a_projector_beside_its_model_is_no_model(tmp_path: Path) -> None:
    model, projector = (small_model(tmp_path / "a" / name) for name in ("m-Q4_K_M.gguf", "mmproj-m-F16.gguf"))
    assert model_paths(tmp_path) == [model]
    assert head_paths(tmp_path) == [projector]


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_a_link_to_a_folder_above_itself_repeats_no_model(tmp_path: Path) -> None:
    path = small_model(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert model_paths(tmp_path) == [path]


def test_the_stamp_of_the_folders_changes_with_every_file_that_comes_or_goes(tmp_path: Path) -> None:
    stamps = [folder_stamp(tmp_path / "models")]
    for name in ("loose.gguf", "a/x/m.gguf", "a/x/Q4/m.gguf"):
        path = small_model(tmp_path / "models" / name)
        _set_folder_time(path.parent, 10**18 + len(stamps))
        stamps.append(folder_stamp(tmp_path / "models"))
    path.unlink()
    _set_folder_time(path.parent, 10**18 + len(stamps))
    stamps.append(folder_stamp(tmp_path / "models"))
    assert len(set(stamps)) == len(stamps)
    assert folder_stamp(tmp_path / "models") == stamps[-1]


def _set_folder_time(folder: Path, time_ns: int) -> None:
    """Set the time that some file systems count in whole seconds only."""
    os.utime(folder, ns=(time_ns, time_ns))


def test_the_repo_of_a_file_is_its_first_two_folders(tmp_path: Path) -> None:
    names = {"m.gguf": "", "a/m.gguf": "a", "a/x/m.gguf": "a/x", "a/x/Q4/m.gguf": "a/x"}
    assert {name: repo_of(tmp_path / name, tmp_path) for name in names} == names


def test_a_file_is_changing_until_ten_seconds_after_its_last_change(tmp_path: Path) -> None:
    stat = stat_model(small_model(tmp_path / "m.gguf"))
    assert stat.is_changing(stat.changed_s + 9)
    assert not stat.is_changing(stat.changed_s + 11)
    assert not stat.is_changing(stat.changed_s - 1), "the clock was set back"


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
