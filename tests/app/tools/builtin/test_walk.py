"""Patterns of file names: as Git understands them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.tools.builtin.walk import IgnoreRules, matches_glob


def ignored(text: str, path: str, *, is_folder: bool = False, folder: str = "") -> bool:
    return IgnoreRules().with_file(folder, text).ignores(path, is_folder=is_folder)


@pytest.mark.parametrize(
    ("pattern", "path", "is_ignored"),
    [
        ("*.pyc", "a/b.pyc", True),
        ("*.pyc", "a/b.py", False),
        ("/build", "build", True),
        ("/build", "a/build", False),
        ("docs/*.md", "docs/a.md", True),
        ("docs/*.md", "docs/a/b.md", False),
        ("docs/**/*.md", "docs/a/b.md", True),
        ("**/x", "a/b/x", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a?c", "abc", True),
        ("[a-c].txt", "b.txt", True),
        ("[!a-c].txt", "b.txt", False),
        ("\\#x", "#x", True),
        ("# x", "# x", False),
        ("x  ", "x", True),
        ("[z-a]", "z", False),
        ("[", "[", True),
    ],
)
def test_patterns(pattern: str, path: str, is_ignored: bool) -> None:
    assert ignored(pattern, path) is is_ignored


def test_a_pattern_with_a_final_slash_is_for_folders() -> None:
    assert ignored("build/", "build", is_folder=True)
    assert not ignored("build/", "build")


def test_the_last_pattern_that_matches_counts() -> None:
    rules = IgnoreRules().with_file("", "*.log\n!keep.log\n").with_file("a", "keep.log")
    assert not rules.ignores("keep.log", is_folder=False)
    assert rules.ignores("a/keep.log", is_folder=False)


def test_a_glob_matches_names_or_with_a_slash_whole_paths() -> None:
    assert matches_glob("*.py", "src/a.py")
    assert matches_glob("src/**/*.py", "src/a/b.py")
    assert not matches_glob("src/*.py", "src/a/b.py")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs Git")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="ab*?/!.[]", min_size=1, max_size=6), min_size=1, max_size=4))
@example(["?//"])
def test_git_agrees(tmp_path_factory: pytest.TempPathFactory, patterns: list[str]) -> None:
    top = tmp_path_factory.mktemp("repo")
    names = ["a", "b", "a.b", "ab", ".a", "x/a", "x/b", "x/y/ab"]
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    text = "\n".join(patterns) + "\n"
    Path(top, ".gitignore").write_text(text)
    subprocess.run(["git", "init", "-q", str(top)], check=True)
    found = subprocess.run(
        ["git", "-C", str(top), "ls-files", "-o", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    rules = IgnoreRules().with_file("", text)

    def is_kept(name: str) -> bool:
        parts = name.split("/")
        above = ("/".join(parts[:number]) for number in range(1, len(parts)))
        return not any(rules.ignores(folder, is_folder=True) for folder in above) and not rules.ignores(
            name, is_folder=False
        )

    assert [name for name in names if is_kept(name)] == [name for name in names if name in found.stdout.split("\n")]
