from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.knowledge.scan import SECRET, scan

posix = pytest.mark.skipif(os.name == "nt", reason="links, pipes and rights of POSIX")


def _found(top: Path, *excluded: Path) -> dict[str, str]:
    return {os.fsdecode(found.path): found.reason for found in scan(top, excluded)}


def _write(top: Path, *names: str) -> None:
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "prod.env", "id_rsa", "id_ed25519.bak", "server.pem", "tls.KEY", "secrets.yaml", ".netrc"],
)
def test_a_name_of_secrets_stays_out_and_says_so(tmp_path: Path, name: str) -> None:
    _write(tmp_path, name)
    assert _found(tmp_path) == {name: SECRET}


@pytest.mark.parametrize("name", ["secrets.rst", "keys.txt", "environment.md", "id_rsa_explained/a.txt", "monkey.txt"])
def test_documents_about_secrets_are_documents(tmp_path: Path, name: str) -> None:
    _write(tmp_path, name)
    assert _found(tmp_path) == {name: ""}


def test_hidden_names_and_folders_of_programs_stay_out(tmp_path: Path) -> None:
    _write(tmp_path, "a.txt", ".bashrc", ".git/config", "node_modules/x/readme.md", "b/c.txt")
    assert _found(tmp_path) == {
        "a.txt": "",
        ".bashrc": "hidden",
        ".git": "a hidden folder",
        "node_modules": "a folder of programs",
        "b/c.txt": "",
    }


def test_an_excluded_folder_stays_out(tmp_path: Path) -> None:
    _write(tmp_path, "own/knowledge.db", "a.txt")
    assert _found(tmp_path, tmp_path / "own") == {"own": "localllm's own folder", "a.txt": ""}


@posix
def test_links_are_not_followed_and_pipes_are_not_opened(tmp_path: Path) -> None:
    top = tmp_path / "top"
    _write(tmp_path, "outside.txt", "top/a.txt")
    (top / "loop").symlink_to(top)
    (top / "out.txt").symlink_to(tmp_path / "outside.txt")
    os.mkfifo(top / "pipe")
    assert _found(top) == {"a.txt": "", "loop": "a link", "out.txt": "a link", "pipe": "a pipe"}


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "closed/a.txt", "b.txt")
    (tmp_path / "closed").chmod(0)
    try:
        assert "cannot be read" in _found(tmp_path)["closed"]
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_a_folder_nested_too_deep_ends_the_walk(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(70):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (reason,) = _found(tmp_path).values()
    assert reason == "a folder nested too deep"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(scan(tmp_path / "missing"))
