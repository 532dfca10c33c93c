"""What files held before tools changed them: kept before the change, restored by an undo, bounded."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.tools import file_access
from app.tools.file_access import NO_FILE, open_folder
from app.tools.file_history import FileHistory, HistoryLimits
from app.tools.tool import FileChange
from quantizer.system.errors import StorageError

DAY_S = 24 * 3600


@pytest.fixture
def history(tmp_path: Path) -> FileHistory:
    return FileHistory(tmp_path / "history")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def write(history: FileHistory, path: Path, content: bytes) -> FileChange:
    try:
        with open_folder(path.parent) as opened:
            state = opened.read(path.name)
    except FileNotFoundError:
        state = NO_FILE
    change = history.prepare(path, state, content)
    history.write(change, state, content)
    return change


def age(history_folder: Path, content: bytes, days: float) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    path = history_folder / sha256[:2] / sha256[2:]
    when = path.stat().st_mtime - days * DAY_S
    os.utime(path, (when, when))


def test_a_write_can_be_undone_with_bytes_and_rights(history: FileHistory, folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"old\r\n\xff")
    path.chmod(0o741)
    change = write(history, path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o741)
    path.chmod(0o600)
    history.undo([change])
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"old\r\n\xff", 0o741)


def test_an_undo_removes_a_new_file_and_the_folders_that_were_made_for_it(history: FileHistory, folder: Path) -> None:
    change = write(history, folder / "a" / "b" / "c.txt", b"new")
    assert change.n_new_folders == 2
    history.undo([change])
    assert list(folder.iterdir()) == []


def test_a_folder_in_which_something_else_is_stays(history: FileHistory, folder: Path) -> None:
    change = write(history, folder / "a" / "b" / "c.txt", b"new")
    (folder / "a" / "mine.txt").write_text("mine")
    history.undo([change])
    assert sorted(path.name for path in folder.rglob("*")) == ["a", "mine.txt"]


def test_an_undo_can_be_undone(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"old")
    (folder / "a").chmod(0o755)
    changes = [write(history, folder / "a", b"new"), write(history, folder / "made" / "b", b"fresh")]
    undone = history.undo(changes)
    assert [path.name for path in folder.iterdir()] == ["a"]
    again = history.undo(undone)
    assert ((folder / "a").read_bytes(), (folder / "made" / "b").read_bytes()) == (b"new", b"fresh")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o755
    history.undo(again)
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert (folder / "a").read_bytes() == b"old"


def test_a_write_that_fails_leaves_no_folder_that_was_made_for_it(
    history: FileHistory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    path = folder / "a" / "b" / "c.txt"
    change = history.prepare(path, NO_FILE, b"new")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        history.write(change, NO_FILE, b"new")
    assert list(folder.iterdir()) == []


def test_without_descriptors_of_folders_as_on_windows_all_is_done_by_paths(
    history: FileHistory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_access, "_HAS_DESCRIPTORS", False)
    (folder / "a").write_bytes(b"old")
    changes = [write(history, folder / "a", b"new"), write(history, folder / "made" / "deeper" / "b", b"fresh")]
    assert changes[1].n_new_folders == 2
    undone = history.undo(changes)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("a", b"old")]
    history.undo(undone)
    assert ((folder / "a").read_bytes(), (folder / "made/deeper/b").read_bytes()) == (b"new", b"fresh")
    (folder / "a").write_bytes(b"by hand")
    with pytest.raises(StorageError, match="changed since"):
        history.undo(changes)
    (folder / "link").symlink_to("made")
    with pytest.raises(StorageError, match="link is on the way"), open_folder(folder / "link"):
        pass


def test_several_changes_of_a_file_are_undone_to_the_first(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"0")
    changes = [write(history, folder / "a", content) for content in (b"1", b"2", b"0", b"3")]
    assert len(history.undo(changes)) == 1
    assert (folder / "a").read_bytes() == b"0"
    assert history.undo(changes) == ()


def test_a_file_that_changed_since_refuses_the_undo_of_all(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"a0")
    (folder / "b").write_bytes(b"b0")
    changes = [write(history, folder / "a", b"a1"), write(history, folder / "b", b"b1")]
    (folder / "a").write_bytes(b"by hand")
    with pytest.raises(StorageError, match="changed since"):
        history.undo(changes)
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"by hand", b"b1")


def test_a_change_by_hand_between_two_writes_refuses_the_undo_of_both(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"0")
    first = write(history, folder / "a", b"1")
    (folder / "a").write_bytes(b"by hand")
    second = write(history, folder / "a", b"2")
    with pytest.raises(StorageError, match="changed since"):
        history.undo([first, second])
    history.undo([second])
    assert (folder / "a").read_bytes() == b"by hand"


def test_a_new_file_that_was_removed_by_hand_is_undone_already(history: FileHistory, folder: Path) -> None:
    change = write(history, folder / "made" / "a", b"1")
    (folder / "made" / "a").unlink()
    (folder / "made").rmdir()
    assert history.undo([change]) == ()


def test_a_recorded_change_that_never_came_to_pass_is_left_out(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"0")
    first = write(history, folder / "a", b"1")
    with open_folder(folder) as opened:
        recorded = history.prepare(folder / "a", opened.read("a"), b"2")
    history.undo([first, recorded])
    assert (folder / "a").read_bytes() == b"0"


def test_an_undo_that_was_cut_off_in_the_middle_can_be_repeated(history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"a0")
    (folder / "b").write_bytes(b"b0")
    changes = [write(history, folder / name, f"{name}{n}".encode()) for n in (1, 2) for name in "ab"]
    history.undo([change for change in changes if change.path.endswith("b")])  # what a killed undo had done
    history.undo(changes)
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"a0", b"b0")


def test_a_file_too_large_to_keep_is_written_and_its_undo_refused(history: FileHistory, folder: Path) -> None:
    path = folder / "large"
    path.write_bytes(b"x" * 20_000_000)
    change = write(history, path, b"small")
    assert not change.is_kept
    with pytest.raises(StorageError, match="too large to keep"):
        history.undo([change])
    assert path.read_bytes() == b"small"


def test_a_content_that_is_no_longer_kept_refuses_the_undo_and_changes_nothing(
    tmp_path: Path, history: FileHistory, folder: Path
) -> None:
    (folder / "a").write_bytes(b"old")
    changes = [write(history, folder / "a", b"new"), write(history, folder / "b", b"b")]
    sha256 = changes[0].before
    (tmp_path / "history" / sha256[:2] / sha256[2:]).unlink()
    with pytest.raises(StorageError, match="no longer kept"):
        history.undo(changes)
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"new", b"b")


def test_a_damaged_content_is_not_restored(tmp_path: Path, history: FileHistory, folder: Path) -> None:
    (folder / "a").write_bytes(b"old")
    change = write(history, folder / "a", b"new")
    (tmp_path / "history" / change.before[:2] / change.before[2:]).write_bytes(b"bad")
    with pytest.raises(StorageError, match="damaged"):
        history.undo([change])
    assert (folder / "a").read_bytes() == b"new"


def test_an_undo_follows_no_link_that_took_the_place_of_a_folder(tmp_path: Path, history: FileHistory) -> None:
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    (inner / "a").write_bytes(b"old")
    change = write(history, inner / "a", b"new")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_bytes(b"new")
    inner.rename(tmp_path / "moved")
    inner.symlink_to(other)
    with pytest.raises(StorageError, match="link"):
        history.undo([change])
    assert (other / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    "change",
    [
        FileChange("relative", "", "0" * 64),
        FileChange("/tmp/../etc/passwd", "", "0" * 64),
        FileChange("/nowhere/a", "../../etc/passwd", ""),
        FileChange("/nowhere/a", "x" * 64, ""),
    ],
)
def test_a_change_that_lies_is_refused(history: FileHistory, change: FileChange) -> None:
    with pytest.raises(StorageError):
        history.undo([change])


def kept(history_folder: Path) -> int:
    return len(list(history_folder.glob("??/" + "?" * 62)))


def test_contents_beyond_the_bytes_go_oldest_first_but_those_of_the_newest_changes_stay(
    tmp_path: Path, folder: Path
) -> None:
    history = FileHistory(tmp_path / "history", HistoryLimits(max_bytes=10, n_newest=4))
    changes = [write(history, folder / "a", f"content {number}".encode()) for number in range(6)]
    assert kept(tmp_path / "history") == 4
    history.undo(changes[-3:])
    assert (folder / "a").read_bytes() == b"content 2"
    with pytest.raises(StorageError, match="no longer kept"):
        history.undo([changes[2]])


def test_old_contents_go_but_not_those_of_the_newest_changes(tmp_path: Path, folder: Path) -> None:
    history = FileHistory(tmp_path / "history", HistoryLimits(n_newest=2))
    for number in range(5):
        write(history, folder / "a", f"content {number}".encode())
    for number in range(5):
        age(tmp_path / "history", f"content {number}".encode(), 40 - number)
    assert history.sweep() == 3
    assert kept(tmp_path / "history") == 2


def test_contents_that_no_chat_names_go_after_a_day(tmp_path: Path, history: FileHistory, folder: Path) -> None:
    changes = [write(history, folder / "a", f"{number}".encode()) for number in range(3)]
    assert history.remove_unused([]) == 0
    for number in range(3):
        age(tmp_path / "history", f"{number}".encode(), 2)
    used = [changes[2].before, changes[2].after]
    paths, n_bytes = history.unused(used)
    assert ([path.read_bytes() for path in paths], n_bytes) == ([b"0"], 1)
    assert history.remove_unused(used) == 1
    history.undo([changes[2]])


def test_what_a_killed_writer_left_is_swept_and_what_a_running_one_writes_is_not(
    tmp_path: Path, history: FileHistory, folder: Path
) -> None:
    write(history, folder / "a", b"1")
    marks = tmp_path / "history" / "writing"
    partials = {
        "2147483000.0": folder / ".localllm.2147483000.0.tmp",
        f"{os.getpid()}.99": folder / ".localllm.1.9.tmp",
    }
    for name, partial in partials.items():
        partial.write_bytes(b"half")
        (marks / name).write_text(f'"{partial}"')
    (marks / "2147483000.1").write_text("")  # it was killed before it named a file
    (marks / "2147483000.2").write_text(f'"{folder / "a"}"')  # no name of a partial file: it stays
    history.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [".localllm.1.9.tmp", "a"]
    assert [path.name for path in marks.iterdir()] == [f"{os.getpid()}.99"]


def test_no_mark_is_left_after_a_write_or_an_undo(tmp_path: Path, history: FileHistory, folder: Path) -> None:
    history.undo([write(history, folder / "a", b"1")])
    assert list((tmp_path / "history" / "writing").iterdir()) == []


def test_the_store_is_for_its_owner_only(tmp_path: Path, history: FileHistory, folder: Path) -> None:
    write(history, folder / "a", b"secret")
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "history").glob("??/*")}
    assert modes == {0}


def test_threads_that_write_at_once_lose_nothing(history: FileHistory, folder: Path) -> None:
    changes: list[FileChange] = []

    def work(name: str) -> None:
        changes.extend(write(history, folder / name, f"{name} {number % 3}".encode()) for number in range(10))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(changes) == 40
    history.undo(changes)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "x/c", "x/y/d"]), st.sampled_from([b"", b"1", b"2"])), max_size=8),
    st.integers(0, 8),
)
@example([("x/c", b""), ("x/y/d", b""), ("x/c", b"1")], 0)
def test_undoing_any_tail_of_changes_restores_what_was_before(
    tmp_path_factory: pytest.TempPathFactory, writes: Sequence[tuple[str, bytes]], n_kept: int
) -> None:
    top = tmp_path_factory.mktemp("undo")
    history, folder = FileHistory(top / "history"), top / "project"
    folder.mkdir()
    (folder / "a").write_bytes(b"first")

    def tree() -> dict[str, bytes | None]:
        return {
            str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
        }

    trees, changes = [tree()], []
    for name, content in writes:
        changes.append(write(history, folder / name, content))
        trees.append(tree())
    n_kept = min(n_kept, len(writes))
    undone = history.undo(changes[n_kept:])
    assert tree() == trees[n_kept]
    history.undo(undone)
    assert tree() == trees[-1]
