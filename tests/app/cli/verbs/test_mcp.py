"""`localllm mcp`: servers added, listed, tested, imported and removed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).parents[2] / "tools" / "mcp" / "hostile_server.py"
COMMAND = (sys.executable, "-I", str(SERVER))
needs_mcp = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="the optional extra")


@pytest.fixture
def mcp(localllm: Callable[..., Any]) -> Callable[..., Any]:
    """Run `localllm mcp …`; the home folder and the folder of mcp.json are the test's own."""
    return lambda *words: localllm("mcp", *words)


def written(tmp_path: Path) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((tmp_path / "mcp.json").read_text("utf-8"))["mcpServers"]
    return entries


def test_a_command_and_a_url_are_added_and_removed(mcp: Callable[..., Any], tmp_path: Path) -> None:
    assert mcp("add", "time", "--timeout", "5", "--env", "A=b=c", "--", "uvx", "mcp-server-time", "--local").status == 0
    assert mcp("add", "web", "https://h/mcp", "--header", "Authorization=Bearer ${TOKEN}").status == 0
    assert written(tmp_path) == {
        "time": {"command": "uvx", "args": ["mcp-server-time", "--local"], "env": {"A": "b=c"}, "timeout_s": 5.0},
        "web": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    }
    listed = mcp("list", "--no-start").out
    assert "time  uvx mcp-server-time --local" in listed
    assert "b=c" not in listed
    assert mcp("remove", "time").out == "Removed time.\n"
    assert list(written(tmp_path)) == ["web"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("add", "a"), "Missing"),
        (("add", "a\x1b[2J", "--", "x"), "name"),
        (("add", "a", "--env", "A", "--", "x"), "--env takes NAME=VALUE"),
        (("add", "a", "--env", "A=b", "http://h"), "--header is for a URL"),
        (("add", "a", "--header", "A=b", "--", "x"), "--header is for a URL"),
        (("add", "a", "--timeout", "0", "--", "x"), "0"),
        (("remove", "a"), "no server 'a'"),
        (("test", "a"), "no server 'a'"),
    ],
)
def test_wrong_use_is_an_error(mcp: Callable[..., Any], words: tuple[str, ...], cause: str) -> None:
    ended = mcp(*words)
    assert ended.status == 2
    assert cause in ended.err
    assert "\x1b" not in ended.err


def test_a_name_that_is_taken_is_replaced_only_when_asked(mcp: Callable[..., Any], tmp_path: Path) -> None:
    mcp("add", "a", "--", "x")
    assert mcp("add", "a", "--", "y").status == 2
    assert mcp("add", "a", "--overwrite", "--", "y").status == 0
    assert written(tmp_path)["a"]["command"] == "y"


def test_a_broken_file_says_where(mcp: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a" 1}}', encoding="utf-8")
    ended = mcp("list")
    assert ended.status == 2
    assert "line 1, column 21" in ended.err


@needs_mcp
def test_servers_are_started_and_listed_with_their_problems(mcp: Callable[..., Any]) -> None:
    mcp("add", "fine", "--", *COMMAND, "terminal")
    mcp("add", "dead", "--", *COMMAND, "dies at start")
    mcp("add", "gone", "--", "no-such-command")
    listed = mcp("list")
    assert listed.status == 0
    assert "fine__call" in listed.out
    assert "exit status 7; its last output: no licence" in listed.out
    assert "'no-such-command' is not found" in listed.out
    assert "\x1b" not in listed.out
    servers = {each["name"]: each for each in mcp("list", "--json").json["servers"]}
    assert {name: each["state"] for name, each in servers.items()} == {
        "fine": "ready",
        "dead": "failed",
        "gone": "failed",
    }
    assert [tool["name"] for tool in servers["fine"]["tools"]] == ["fine__call"]


@needs_mcp
def test_a_server_is_tested_with_times(mcp: Callable[..., Any]) -> None:
    mcp("add", "fine", "--", *COMMAND)
    tested = mcp("test", "fine")
    assert tested.status == 0
    assert "protocol 2025-06-18" in tested.out
    assert "started and listed in" in tested.out
    assert mcp("test", "fine", "--json").json["started_s"] > 0
    mcp("add", "dead", "--", *COMMAND, "dies at start")
    assert mcp("test", "dead").status == 1


def test_a_login_is_for_a_server_that_is_reached_by_an_address(mcp: Callable[..., Any], tmp_path: Path) -> None:
    from app.tools.mcp.logins import Login, LoginFile

    mcp("add", "fine", "--", *COMMAND)
    assert "no server 'other'" in mcp("login", "other").err
    assert "It is a program" in mcp("login", "fine").err
    assert mcp("logout", "fine").out == "There was no login to fine.\n"
    kept = LoginFile("web", tmp_path / "mcp-logins")
    mcp("add", "web", "https://h/mcp")
    kept.write(Login("https://h/mcp", "token"))
    assert mcp("logout", "web", "--json").json == {"server": "web", "was_logged_in": True}
    assert not kept.path.exists()
    kept.write(Login("https://h/mcp", "token"))
    mcp("remove", "web")
    assert not kept.path.exists()


@needs_mcp
def test_a_login_says_where_and_how_it_ended(mcp: Callable[..., Any]) -> None:
    mcp("add", "web", "http://127.0.0.1:9/mcp")
    ended = mcp("login", "web", "--no-browser")
    assert ended.status != 0
    assert "No login to the MCP server web. Its login cannot be reached" in ended.err


def test_a_disabled_server_is_listed_and_not_started(mcp: Callable[..., Any], tmp_path: Path) -> None:
    entry = {"command": "no-such-command", "disabled": True}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": entry}}), encoding="utf-8")
    assert mcp("list").out == "a  (disabled)  no-such-command\n"


def test_imported_is_what_the_person_agrees_to(mcp: Callable[..., Any], tmp_path: Path) -> None:
    cursor = tmp_path / ".cursor" / "mcp.json"
    cursor.parent.mkdir(parents=True)
    entries = {
        "a": {"command": "npx", "args": ["-y", "x y"], "env": {"NODE_OPTIONS": "--require /evil"}},
        "b": {"url": "https://h/mcp"},
        "c": {"args": []},
    }
    cursor.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    found = mcp("import", "--json").json["found"]
    assert [(each["name"], each["program"], each["problem"]) for each in found] == [
        ("a", "Cursor", ""),
        ("b", "Cursor", ""),
        ("c", "Cursor", "It has neither `command` nor `url`."),
    ]
    assert not (tmp_path / "mcp.json").exists()

    asked = mcp("import")
    assert asked.status == 2
    assert "needs a confirmation" in asked.err
    assert not (tmp_path / "mcp.json").exists()

    taken = mcp("import", "--yes")
    assert taken.status == 0
    for line in ("npx -y 'x y'", "NODE_OPTIONS=--require /evil", "https://h/mcp", "Imported 2 of 3 servers"):
        assert line in taken.out
    assert written(tmp_path) == {name: entries[name] for name in "ab"}
    again = mcp("import", "--yes")
    assert "a of Cursor is left out: it is here already." in again.out
    assert "Imported 0 of 3" in again.out


def test_each_server_is_asked_about(mcp: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = tmp_path / ".cursor" / "mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}), encoding="utf-8")
    asked: list[str] = []

    def answer(question: str, **_: object) -> bool:
        asked.append(question)
        return question == "Import b?"

    monkeypatch.setattr("click.confirm", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert "Imported 1 of 2" in mcp("import").out
    assert asked == ["Import a?", "Import b?"]
    assert list(written(tmp_path)) == ["b"]


def test_a_server_of_another_command_under_a_name_that_is_taken_is_left_out(
    mcp: Callable[..., Any], tmp_path: Path
) -> None:
    cursor = tmp_path / ".cursor" / "mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text(json.dumps({"mcpServers": {"a": {"command": "evil"}}}), encoding="utf-8")
    mcp("add", "a", "--", "good")
    assert "another server of this name" in mcp("import", "--yes").out
    assert written(tmp_path)["a"]["command"] == "good"
