"""Files at paths without links: a link that appears is refused, and a file is replaced whole or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from app.tools.file_access import NO_FILE, FileState, OpenFolder, is_partial_file, open_folder
from quantizer.system.errors import StorageError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="descriptors of folders")


def state(path: Path) -> FileState:
    with open_folder(path.parent) as folder:
        return folder.read(path.name)


def replace(path: Path, content: bytes, mode: int = -1, expected: FileState | None = None) -> None:
    with open_folder(path.parent) as folder:
        now = folder.read(path.name) if expected is None else expected
        folder.replace(path.name, content, mode, now, lambda _partial: None)


def test_a_state_tells_content_digest_and_rights(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    path.chmod(0o640)
    found = state(path)
    assert (found.content, found.sha256, found.n_bytes, found.mode) == (
        b"content",
        hashlib.sha256(b"content").hexdigest(),
        7,
        0o640,
    )
    assert state(tmp_path / "missing") == NO_FILE


def test_the_content_of_a_larger_file_is_left_out_but_not_its_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    with open_folder(tmp_path) as folder:
        found = folder.read("a", 4999)
    assert (found.content, found.n_bytes) == (None, 5000)
    assert found.sha256 == hashlib.sha256(b"x" * 5000).hexdigest()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)  # reading it would wait for ever
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    else:
        path.mkdir()
    with pytest.raises(StorageError, match=f"a is a {kind}"):
        state(path)


def test_devices_are_not_opened() -> None:
    with pytest.raises(StorageError, match="device"):
        state(Path("/dev/zero"))


def test_a_folder_that_became_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (tmp_path / "folder").symlink_to("secret")
    for path in (tmp_path / "folder" / "key", tmp_path / "folder" / "deeper" / "key"):
        with pytest.raises(StorageError, match="link is on the way"):
            state(path)


def test_no_swap_of_a_folder_for_a_link_ever_leads_a_read_or_write_outside(tmp_path: Path) -> None:
    """A rival swaps the folder for a link to a secret one, and back, as fast as it can."""
    secret, folder, away = tmp_path / "secret", tmp_path / "folder", tmp_path / "away"
    secret.mkdir()
    folder.mkdir()
    (secret / "key").write_bytes(b"secret")
    (folder / "key").write_bytes(b"mine")
    link = tmp_path / "link"
    link.symlink_to("secret")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            folder.rename(away)
            link.rename(folder)
            folder.rename(link)
            away.rename(folder)

    rival = threading.Thread(target=swap)
    rival.start()
    n_refused, n_read = 0, 0
    try:
        for _ in range(3_000):
            try:
                found = state(folder / "key")
                replace(folder / "key", b"mine", expected=found)
            except (StorageError, FileNotFoundError):
                n_refused += 1
                continue
            assert found.content in (b"mine", None)
            n_read += 1
    finally:
        is_over.set()
        rival.join()
    assert (secret / "key").read_bytes() == b"secret"
    assert [path.name for path in secret.iterdir()] == ["key"]
    assert n_read + n_refused == 3_000


def test_a_replaced_file_keeps_its_rights_and_a_new_one_gets_those_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(b"old")
    path.chmod(0o750)
    replace(path, b"new", mode=0o750)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o750)
    former = os.umask(0o027)
    try:
        replace(tmp_path / "fresh", b"x")
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_file_that_changed_or_appeared_meanwhile_is_not_replaced_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    seen = state(path)
    path.write_bytes(b"of another")
    with pytest.raises(StorageError, match="changed meanwhile"):
        replace(path, b"new", expected=seen)
    with pytest.raises(StorageError, match="changed meanwhile"):
        replace(path, b"new", expected=NO_FILE)
    with open_folder(tmp_path) as folder, pytest.raises(StorageError, match="changed meanwhile"):
        folder.remove("a", seen)
    assert path.read_bytes() == b"of another"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_middle_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    seen = state(path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace(path, b"new", expected=seen)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_missing_folders_are_made_on_request_and_counted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "a" / "b"):
        pass
    with open_folder(tmp_path / "a" / "b", make=True) as folder:
        assert folder.n_made == 2
    with open_folder(tmp_path / "a" / "b", make=True) as folder:
        assert folder.n_made == 0


def test_a_file_on_the_way_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(StorageError, match="is not a folder"), open_folder(tmp_path / "a" / "b", make=True):
        pass


def test_the_partial_file_is_named_before_it_is_made(tmp_path: Path) -> None:
    named: list[Path] = []

    def note(partial: Path) -> None:
        assert not partial.exists()
        named.append(partial)

    with open_folder(tmp_path) as folder:
        folder.replace("a" * 255, b"x", -1, NO_FILE, note)
    assert [is_partial_file(path) for path in named] == [True]
    assert not is_partial_file(tmp_path / ".localllm")


def test_folders_above_need_not_be_readable(tmp_path: Path) -> None:
    if os.geteuid() == 0 or not hasattr(os, "O_PATH"):
        pytest.skip("needs a user with limits, and Linux")
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    (inner / "a").write_bytes(b"x")
    (tmp_path / "closed").chmod(0o100)
    try:
        assert state(inner / "a").content == b"x"
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_names_of_an_open_folder_have_no_separators(tmp_path: Path) -> None:
    folder = OpenFolder(tmp_path, None)
    for name in ("", "..", "a/b"):
        with pytest.raises(AssertionError):
            folder.read(name)
