from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quantizer.system.errors import StorageError, UsageError
from quantizer.system.faults import UnsuitableFileError, system_fault
from quantizer.system.files import (
    explained,
    has_record_locks,
    make_folder,
    make_private,
    open_partial,
    open_private,
    open_regular,
    private_folder,
    read_at_most,
    read_regular,
    remove_lock,
    replace_file,
    sorted_glob,
    try_lock,
    why_unwritable,
    write_atomically,
    write_cache,
    writer_of,
)

has_modes = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")

HOLDER = """
import sys
from pathlib import Path
from quantizer.system.files import try_lock
lock = try_lock(Path(sys.argv[1]))
print(lock is not None, flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert try_lock(path) is None
        holder.kill()
        holder.wait()
        lock = try_lock(path)
        assert lock is not None
        lock.release()


@pytest.fixture(params=["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def lockless(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a file system that refuses to lock files, with this error; locks on the local disk work."""
    folder, local = tmp_path / "mount", tmp_path / "run"
    for each in (folder, local):
        each.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(local))
    number = getattr(errno, request.param)

    def refusing(real: Callable[..., None]) -> Callable[..., None]:
        def lock(file: Any, *arguments: Any) -> None:
            status = os.fstat(file if isinstance(file, int) else file.fileno())
            if (
                status.st_ino in {path.stat().st_ino for path in folder.iterdir()} or status.st_nlink == 0
            ):  # a temporary file has no name
                raise OSError(number, os.strerror(number))
            real(file, *arguments)

        return lock

    monkeypatch.setattr("fcntl.flock", refusing(fcntl.flock))
    monkeypatch.setattr("fcntl.lockf", refusing(fcntl.lockf))
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks files on every file system")
def test_where_the_file_system_has_no_locks_one_on_the_local_disk_excludes_others(lockless: Path) -> None:
    path = lockless / "lock"
    first = try_lock(path)
    assert first is not None
    assert path.exists()
    assert try_lock(path) is None
    assert try_lock(path, 0.05) is None
    other = try_lock(lockless / "other")
    assert other is not None
    first.release()
    again = try_lock(path)
    assert again is not None
    remove_lock(again)
    assert not path.exists()
    other.release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks files on every file system")
def test_a_folder_of_locks_that_somebody_else_made_is_not_used(lockless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(PermissionError, match="Another user owns the folder of locks"):
        try_lock(lockless / "lock")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks files on every file system")
def test_a_file_system_that_locks_no_parts_of_files_is_recognised(lockless: Path, tmp_path: Path) -> None:
    assert not has_record_locks(lockless)
    assert has_record_locks(tmp_path / "missing")


def test_a_local_disk_locks_parts_of_files(tmp_path: Path) -> None:
    assert has_record_locks(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_lock_leaves_no_file_and_can_be_taken_again(tmp_path: Path) -> None:
    first = try_lock(tmp_path / "lock")
    assert first is not None
    assert try_lock(tmp_path / "lock") is None
    remove_lock(first)
    assert not list(tmp_path.iterdir())
    again = try_lock(tmp_path / "lock")
    assert again is not None
    assert try_lock(tmp_path / "lock") is None
    remove_lock(again)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("data", [b"new", "new", ["n", "ew"], [b"n", bytearray(b"ew")]])
def test_a_file_is_replaced_whole(tmp_path: Path, data: str, sync: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, data, sync=sync)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "new"
        raise RuntimeError

    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        write_atomically(path, pieces(), sync=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as dead:
        pass
    abandoned, others = tmp_path / f".file.{dead.pid}.0.tmp", [f".file.{os.getpid()}.99.tmp", f".x.{dead.pid}.0.tmp"]
    for path in (abandoned, *(tmp_path / name for name in others)):
        path.write_text("half")
    write_atomically(tmp_path / "file", "new", sync=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", *others])


def test_permissions_hold_from_the_first_byte_on(tmp_path: Path) -> None:
    seen = []

    def pieces() -> Iterator[str]:
        [partial] = tmp_path.iterdir()
        seen.append((partial.stat().st_mode & 0o777, writer_of(partial)))
        yield "secret"

    write_atomically(tmp_path / "file", pieces(), sync=False, mode=0o600)
    assert seen == [(0o600, str(os.getpid()))]


@pytest.mark.parametrize("name", ["file", ".file.12.tmp", "file.12.3.tmp", ".file.12.3.partial"])
def test_other_files_have_no_writer(name: str) -> None:
    assert writer_of(Path(name)) == ""


@pytest.mark.parametrize("kind", [StorageError, UsageError])
def test_an_error_of_the_disk_is_explained_with_its_reason(
    kind: type[StorageError | UsageError], tmp_path: Path
) -> None:
    with (
        pytest.raises(kind, match=r"^a\.gguf cannot be read: No such file or directory\. Look again\.$"),
        explained("a.gguf cannot be read", "Look again.", kind),
    ):
        (tmp_path / "a.gguf").read_bytes()


@has_modes
def test_a_private_file_and_the_folders_made_for_it_are_for_their_owner_only(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(0o755)
    before = os.umask(0)
    try:
        with open_private(private_folder(tmp_path / "shared" / "a" / "b") / "file") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    modes = [(tmp_path / "shared" / name).stat().st_mode & 0o777 for name in ("", "a", "a/b", "a/b/file")]
    assert modes == [0o755, 0o700, 0o700, 0o600]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot sync a folder")
def test_the_names_of_new_folders_are_synced_before_anything_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a failure of the power takes the folder, whatever was synced in it."""
    done = list[str]()
    real_mkdir, real_open, real_fsync = os.mkdir, os.open, os.fsync
    opened = dict[int, str]()

    def mkdir(path: Path, mode: int = 0o777) -> None:
        real_mkdir(path, mode)
        done.append(f"made {Path(path).name}")

    def open_folder(path: Path, *args: Any) -> int:
        number = real_open(path, *args)
        opened[number] = Path(path).name
        return number

    def fsync(number: int) -> None:
        real_fsync(number)
        done.append(f"synced {opened[number]}")

    for name, double in (("mkdir", mkdir), ("open", open_folder), ("fsync", fsync)):
        monkeypatch.setattr(os, name, double)
    make_folder(tmp_path / "a" / "b")
    assert done == ["made a", f"synced {tmp_path.name}", "made b", "synced a"]
    make_folder(tmp_path / "a" / "b")
    assert len(done) == 4


@has_modes
@pytest.mark.skipif(os.geteuid() == 0 if sys.platform != "win32" else True, reason="root may list everything")
def test_a_folder_is_made_where_nothing_may_be_listed(tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir(0o300)
    assert make_folder(tmp_path / "mail" / "in").is_dir()


def test_a_private_file_that_must_be_new_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "file", is_new=True)


@has_modes
def test_rights_of_others_are_taken_but_not_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert [make_private(tmp_path / name) for name in ("link", "file", "file", "missing")] == [
        False,
        True,
        False,
        False,
    ]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_is_read_to_its_end_or_to_a_limit() -> None:
    data = bytes(range(256)) * 10_000
    assert read_at_most(io.BytesIO(data), 1 << 40) == data
    assert read_at_most(io.BytesIO(data), 2_000_001) == data[:2_000_001]
    assert read_at_most(io.BytesIO(data), 0) == b""


@pytest.mark.parametrize("n_refusals", [3, 10_000])
def test_a_file_that_another_program_of_windows_has_open_is_replaced_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_refusals: int
) -> None:
    refusals = [PermissionError(13, "Access is denied") for _ in range(n_refusals)]
    replace, now_s = os.replace, [0.0]

    def replacing(source: str, target: str, **_options: object) -> None:
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr("quantizer.system.files.sys.platform", "win32")
    monkeypatch.setattr("quantizer.system.files.os.replace", replacing)
    monkeypatch.setattr("quantizer.system.files.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("quantizer.system.files.time.sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))
    target = tmp_path / "settings.json"
    target.write_text("old")
    if n_refusals < 10:
        write_atomically(target, "new", sync=False)
        assert target.read_text() == "new"
        return
    open_elsewhere = pytest.raises(StorageError, match=r"another program has settings\.json open")
    with open_elsewhere, explained("The settings cannot be written"):
        write_atomically(target, "new", sync=False)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
    assert target.read_text() == "old"


def test_elsewhere_a_refusal_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("quantizer.system.files.sys.platform", "linux")
    monkeypatch.setattr("quantizer.system.files.os.replace", refuse)
    monkeypatch.setattr("quantizer.system.files.time.sleep", lambda _s: pytest.fail("it waited"))
    (tmp_path / "a").write_text("")
    with pytest.raises(PermissionError, match="Permission denied"):
        replace_file(tmp_path / "a", tmp_path / "b")


def test_a_probe_that_could_not_be_removed_is_removed_by_a_later_one(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / f".probe.{int(ended.stdout)}.0.tmp").touch()
    (mine := tmp_path / f".probe.{os.getpid()}.0.tmp").touch()  # another thread's
    assert why_unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == [mine]


def test_a_cache_that_cannot_be_written_ends_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_cache(tmp_path / "new" / "a.json", "1")
    assert (tmp_path / "new" / "a.json").read_text(encoding="utf-8") == "1"
    (tmp_path / "file").touch()
    logger = logging.getLogger("localllm")
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.INFO, "localllm"):
        assert not write_cache(tmp_path / "file" / "a.json", "1")
        assert not write_cache(tmp_path / "file" / "b.json", "1")
    assert [record.getMessage() for record in caplog.records] == [
        f"Nothing is kept in {tmp_path / 'file'}: File exists."
    ]


def test_a_folder_is_listed_again_where_a_signal_interrupted_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    glob, n_left = Path.glob, 2

    def interrupted(folder: Path, pattern: str) -> Iterator[Path]:
        nonlocal n_left
        n_left -= 1
        if n_left >= 0:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return glob(folder, pattern)

    monkeypatch.setattr(Path, "glob", interrupted)
    assert sorted_glob(tmp_path, "*") == [tmp_path / "a"]


NAMED = {"fifo": "pipe", "socket": "socket", "device": "device", "folder": "folder"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs in its file system")
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.gguf"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        elif kind == "folder":
            path.mkdir()
        else:
            path = Path("/dev/zero")
        with pytest.raises(UnsuitableFileError, match=rf"It is a {NAMED[kind]}, not a regular file"):
            open_regular(path)
        if kind != "socket":  # opening one fails otherwise
            with pytest.raises(OSError, match=rf"It is a {NAMED[kind]}|Is a directory"):
                open_partial(path)
        with (
            pytest.raises(StorageError, match="The model cannot be read: It is a") as caught,
            explained("The model cannot be read", "Check its permissions."),
        ):
            read_regular(path)
    assert caught.value.remedy == "Name a file on a disk."
    fault = system_fault("service", UnsuitableFileError(path, "It is a pipe", "Name a file."))
    assert str(fault) == f"{path} cannot be read or written: It is a pipe. Name a file."


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs in its file system")
def test_a_fifo_that_comes_after_the_look_is_refused_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "x.gguf")
    status = (tmp_path / "file").stat()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: status)
    with pytest.raises(UnsuitableFileError, match="a pipe"):
        open_regular(tmp_path / "x.gguf")


def test_a_file_is_read_whole_up_to_a_limit(tmp_path: Path) -> None:
    whole = b"words" * 1024
    (tmp_path / "a").write_bytes(whole)
    assert read_regular(tmp_path / "a", 5 << 10) == read_regular(tmp_path / "a") == whole
    with pytest.raises(UnsuitableFileError, match="It has more than 4 KiB"):
        read_regular(tmp_path / "a", 4 << 10)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnsuitableFileError, match="It has more than 2 MiB"):
        read_regular(tmp_path / "sparse", 2 << 20)


@pytest.mark.parametrize("appends", [False, True])
def test_a_partial_file_is_made_or_goes_on_and_follows_no_link(tmp_path: Path, appends: bool) -> None:
    for begun in (b"", b"ab"):
        with open_partial(tmp_path / "part", appends=appends) as file:
            assert file.read() == begun
            file.seek(0 if appends else len(begun))
            file.write(b"ab" if not begun else b"c")
    assert (tmp_path / "part").read_bytes() == b"abc"
    (tmp_path / "link").symlink_to(tmp_path / "part")
    (tmp_path / "nowhere").symlink_to(tmp_path / "made")
    if hasattr(os, "O_NOFOLLOW"):
        for name in ("link", "nowhere"):
            with pytest.raises(OSError, match="symbolic"):
                open_partial(tmp_path / name, appends=appends)
        assert not (tmp_path / "made").exists()


def test_a_regular_file_is_opened_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"words")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with open_regular(tmp_path / "b") as buffered, open_regular(tmp_path / "b", 0) as raw:
        assert (buffered.read(), raw.read()) == (b"words", b"words")
