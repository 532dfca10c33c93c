"""Which files a tool may touch: nothing that a model writes as a path leads out of the folders of the chat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.tools.builtin.folders import Folders, PathRefusedError, check_path_text


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two folders of a chat, a secret beside them, and links that lead out and in."""
    for name in ("project/src", "notes", "secret"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secret" / "key").write_text("key")
    (tmp_path / "project" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "project" / "key").symlink_to(tmp_path / "secret" / "key")
    (tmp_path / "project" / "within").symlink_to("src")
    (tmp_path / "project" / "loop").symlink_to("loop")
    (tmp_path / "alias").symlink_to(tmp_path / "project")
    return tmp_path


@pytest.fixture
def folders(home: Path) -> Folders:
    return Folders([home / "project", home / "notes"])


def test_relative_paths_begin_in_the_first_folder(folders: Folders, home: Path) -> None:
    assert folders.find("src/a.py") == home / "project" / "src" / "a.py"
    assert folders.find("./src//a.py") == home / "project" / "src" / "a.py"
    assert folders.find(".") == home / "project"


def test_whole_paths_may_be_in_any_folder(folders: Folders, home: Path) -> None:
    assert folders.find(str(home / "notes" / "b.md")) == home / "notes" / "b.md"
    with pytest.raises(PathRefusedError, match="outside the folders"):
        folders.find(str(home / "secret" / "key"))


def test_a_folder_whose_name_begins_like_another_is_not_in_it(home: Path) -> None:
    (home / "project-two").mkdir()
    with pytest.raises(PathRefusedError):
        Folders([home / "project"]).find(str(home / "project-two" / "a"))


@pytest.mark.parametrize("text", ["out/key", "key", "out", "out/new.txt"])
def test_links_that_lead_out_are_refused(folders: Folders, text: str) -> None:
    with pytest.raises(PathRefusedError, match="outside the folders"):
        folders.find(text)


def test_links_within_are_followed_to_where_they_lead(folders: Folders, home: Path) -> None:
    assert folders.find("within/a.py") == home / "project" / "src" / "a.py"


def test_a_folder_that_is_named_by_a_link_is_the_one_that_it_led_to_then(home: Path) -> None:
    folders = Folders([(home / "alias").resolve()])  # as the faces name it
    (home / "alias").unlink()
    (home / "alias").symlink_to(home / "secret")
    assert folders.find("a.py") == home / "project" / "a.py"
    assert folders.shown(home / "project" / "a.py") == "a.py"


@pytest.mark.parametrize("replaced", ["project", "project/src"])
def test_a_folder_that_becomes_a_link_is_not_followed(home: Path, replaced: str) -> None:
    named = home / "project" / "src"
    (named / "a.py").write_text("")
    (home / "elsewhere" / "src").mkdir(parents=True)
    (home / replaced).rename(home / "former")
    (home / replaced).symlink_to(home / ("elsewhere" if replaced == "project" else "secret"))
    for folders in (Folders([named]), Folders([named, home / "notes"])):
        for text in ("a.py", ".", "key", str(named / "a.py")):
            with pytest.raises(PathRefusedError, match="a link was put there since it was named"):
                folders.find(text)
    assert Folders([named, home / "notes"]).find(str(home / "notes" / "b.md")) == home / "notes" / "b.md"
    (home / replaced).unlink()
    (home / "former").rename(home / replaced)  # back, as a checkout of the first branch does
    assert Folders([named]).find("a.py") == named / "a.py"


def test_a_folder_within_another_one_that_becomes_a_link_is_not_followed_by_either(home: Path) -> None:
    (home / "project" / "src").rmdir()
    (home / "project" / "src").symlink_to(home / "notes")
    folders = Folders([home / "project", home / "project" / "src", home / "notes"])
    with pytest.raises(PathRefusedError, match="a link was put there"):
        folders.find("src/b.md")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../secret/key",
        "src/../../secret/key",
        "src\\..\\..\\secret",
        "src/.. /key",
        "a\0b",
        "\ud800",
        "x" * 5000,
        "x" * 256,
        "a/" * 200 + "b",
        "//server/share/a",
        "\\\\server\\share",
        "\\\\?\\C:\\a",
        "\\\\.\\pipe\\x",
        "C:\\Windows\\a",
        "C:a",
        "c:/a",
        "~/a",
        "~root/a",
        "~",
    ],
)
def test_paths_that_no_tool_takes_are_refused(folders: Folders, text: str) -> None:
    with pytest.raises(PathRefusedError):
        folders.find(text)


@pytest.mark.parametrize(
    "text",
    ["nul", "src/CON", "aux.txt", "com1", "COM¹", "conin$", "a.txt:stream", "a.txt::$DATA", "a. ", "folder./a", "C:a"],
)
def test_on_windows_devices_streams_and_names_that_change_are_refused(text: str) -> None:
    with pytest.raises(PathRefusedError):
        check_path_text(text, is_windows=True)


@pytest.mark.parametrize("text", ["C:\\project\\a.txt", "src\\a.txt", "console.py", "a.nul.txt", ".\\a"])
def test_on_windows_ordinary_paths_are_taken(text: str) -> None:
    check_path_text(text, is_windows=True)


def test_without_folders_there_is_nothing_to_touch() -> None:
    with pytest.raises(PathRefusedError, match="No folder is open"):
        Folders([]).find("a")


def test_nothing_is_written_into_a_folder_of_localllm_unless_the_person_named_one_in_there(home: Path) -> None:
    own = home / ".config" / "localllm"
    with pytest.raises(PathRefusedError, match="a folder of localllm"):
        Folders([home], [own]).find(".config/localllm/mcp.json", is_written=True)
    assert Folders([home], [own]).find(".config/localllm/mcp.json") == own / "mcp.json"
    assert Folders([home], [own]).find(".config/other.json", is_written=True) == home / ".config" / "other.json"
    assert Folders([own], [own]).find("notes.txt", is_written=True) == own / "notes.txt"


@pytest.mark.parametrize("text", [".git/hooks/pre-commit", "src/.git/config", ".GIT/config"])
def test_nothing_is_written_into_the_folder_of_git(folders: Folders, text: str) -> None:
    folders.find(text)
    with pytest.raises(PathRefusedError, match=r"\.git"):
        folders.find(text, is_written=True)


_PARTS = st.sampled_from(
    ["..", ".", "", "src", "out", "key", "within", "loop", "new", "~", "\\", " ", "..."]
) | st.text(max_size=4)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(parts=st.lists(_PARTS, max_size=6), is_whole=st.booleans())
def test_whatever_a_path_is_it_is_refused_or_leads_into_a_folder(home: Path, parts: list[str], is_whole: bool) -> None:
    folders = Folders([home / "project", home / "notes"])
    text = "/".join(parts)
    try:
        found = folders.find(f"{home}/{text}" if is_whole else text)
    except PathRefusedError:
        return
    assert os.path.realpath(found) == str(found) or "loop" in found.parts
    assert any(found == root or root in found.parents for root in (home / "project", home / "notes"))
