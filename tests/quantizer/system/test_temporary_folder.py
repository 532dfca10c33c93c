from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantizer.system import temporary_folder as module
from quantizer.system.errors import StorageError
from quantizer.system.temporary_folder import abandoned_folders, temporary_folder

KILLED = """
import os, signal
from quantizer.system.temporary_folder import temporary_folder
with temporary_folder("load") as folder:
    (folder / "weights").write_bytes(b"w")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module, "_LEAST_AGE_S", -1.0)
    return tmp_path


def test_a_folder_is_the_users_own_and_gone_afterwards_whatever_is_raised(place: Path) -> None:
    with temporary_folder("load") as folder:
        assert folder.parent == place
        if sys.platform != "win32":
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "b").write_bytes(b"b")
    assert not list(place.iterdir())
    with pytest.raises(ZeroDivisionError), temporary_folder("load"):
        raise ZeroDivisionError
    assert not list(place.iterdir())


def test_what_cannot_be_removed_is_said_and_the_next_one_removes_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def failing(_path: object, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as faulty:
        faulty.setattr(module.shutil, "rmtree", failing)
        with temporary_folder("load", said.append) as folder:
            (folder / "weights").write_bytes(b"w")
    assert said == [
        f"{folder} is left, for it cannot be removed: Input/output error. `localllm prune` and later runs try again."
    ]
    assert list(abandoned_folders()) == [folder]
    with temporary_folder("imatrix") as other:
        assert list(place.iterdir()) == [other]


def test_a_fault_that_passes_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, rmtree = list[str](), module.shutil.rmtree

    def failing_once(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        rmtree(path, ignore_errors=True)

    monkeypatch.setattr(module.shutil, "rmtree", failing_once)
    with temporary_folder("load", said.append):
        pass
    assert said == []
    assert not list(place.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_what_a_killed_process_left_is_removed_by_the_next_one(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    left = Path(done.stdout.strip())
    assert (left / "weights").exists()
    with temporary_folder("load"):
        assert not left.exists()


def test_a_folder_in_use_or_made_just_now_or_of_another_name_or_user_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("localllm-locks-1000", "localllm-load-", "localllm-other-ab", "load-ab"):
        (place / name).mkdir()
    (place / "elsewhere").mkdir()
    (place / "localllm-load-link").symlink_to(place / "elsewhere", target_is_directory=True)
    (place / "localllm-load-file").write_bytes(b"f")
    with temporary_folder("launch"):
        assert list(abandoned_folders()) == []
    (young := place / "localllm-load-young").mkdir()
    assert list(abandoned_folders()) == []  # of a former version, which locks none
    (young / ".in-use.lock").touch()
    assert list(abandoned_folders()) == [young]
    (young / ".in-use.lock").touch()
    if sys.platform != "win32":
        with monkeypatch.context() as other_user:
            other_user.setattr(os, "geteuid", lambda: 4711)
            assert list(abandoned_folders()) == []
    monkeypatch.setattr(module, "_LEAST_AGE_S", 60.0)
    assert list(abandoned_folders()) == []
    monkeypatch.setattr(module, "_LEAST_AGE_S", -1.0)
    (young / ".in-use.lock").unlink(missing_ok=True)
    os.utime(young, (1, 1))
    assert list(abandoned_folders()) == [young]


def test_where_no_folder_can_be_made_the_error_has_a_remedy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    with pytest.raises(StorageError, match="cannot be made: No such file") as caught, temporary_folder("load"):
        pass
    assert "TMPDIR" in caught.value.remedy

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(module, "try_lock", full)
    with pytest.raises(StorageError, match="No space left"), temporary_folder("load"):
        pass
    assert not list(place.iterdir())
