from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.engine.cache.state_file import StateKey, read_state, states_in, write_state

LABEL = StateKey("namespace", np.arange(3, dtype=np.int32))
STATE = b"state" * 100


def written(folder: Path) -> Path:
    assert write_state(folder, "name", LABEL, STATE, max_bytes=10_000) == (folder / "name").stat().st_size
    return folder / "name"


def test_a_state_and_its_key_are_read_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    ((name, key, n_bytes),) = states_in(tmp_path)
    assert (name, key.namespace, key.tokens.tolist(), n_bytes) == (
        "name",
        "namespace",
        [0, 1, 2],
        path.stat().st_size,
    )
    assert read_state(path, key) == STATE


def test_a_state_is_not_read_for_other_tokens_or_another_namespace(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_state(path, StateKey("namespace", LABEL.tokens + 1)) is None
    assert read_state(path, StateKey("other", LABEL.tokens)) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage"])
def test_a_damaged_file_is_a_miss_and_never_a_wrong_state(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        del data[-1]
    elif damage == "flip":
        data[-7] ^= 1
    else:
        data[:40] = b"\xff" * 40
    path.write_bytes(data)
    assert read_state(path, LABEL) is None


def test_a_part_that_a_dead_process_left_is_swept_and_a_live_ones_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    (tmp_path / f".aa.{dead.pid}.0.tmp").write_bytes(b"half")
    (tmp_path / f".bb.{os.getpid()}.0.tmp").write_bytes(b"half")
    assert list(states_in(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [f".bb.{os.getpid()}.0.tmp"]


def test_what_the_disk_refuses_or_is_too_large_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file where the folder should be")
    assert write_state(folder, "name", LABEL, STATE, max_bytes=10_000) == 0
    assert write_state(tmp_path / "new", "name", LABEL, STATE, max_bytes=100) == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_its_owner_can_read_a_state_and_list_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = written(tmp_path / "prefix" / "weights")
    finally:
        os.umask(before)
    modes = [file.stat().st_mode & 0o777 for file in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
