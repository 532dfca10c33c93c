"""Servers of other programs are found where those keep them, in the form that each writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.mcp.config import HttpLaunch, StdioLaunch
from app.tools.mcp.other_programs import PROGRAMS, Program, find_servers, without_comments

ENTRY = {"command": "npx", "args": ["-y", "server"], "env": {"TOKEN": "a"}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
LAUNCH = StdioLaunch("npx", ("-y", "server"), {"TOKEN": "a"})


def program(name: str) -> Program:
    return next(each for each in PROGRAMS if each.name == name)


def write(home: Path, name: str, data: object, platform: str = "linux") -> Path:
    path = program(name).path(home, platform)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "data", "launch"),
    [
        ("Claude Desktop", {"mcpServers": {"a": ENTRY}, "theme": "dark"}, LAUNCH),
        ("Claude Code", {"mcpServers": {"a": {**ENTRY, "type": "stdio"}}}, LAUNCH),
        ("Cursor", {"mcpServers": {"a": ENTRY}}, LAUNCH),
        ("VS Code", '{\n// mine\n"servers": {"a": ' + json.dumps(ENTRY) + ",},\n}", LAUNCH),
        (
            "VS Code",
            {"servers": {"a": {"type": "http", "url": "https://h/mcp"}}},
            HttpLaunch("https://h/mcp", {}, "http"),
        ),
        ("LM Studio", {"mcpServers": {"a": ENTRY}}, LAUNCH),
        ("Windsurf", {"mcpServers": {"a": {"serverUrl": "https://h/sse"}}}, HttpLaunch("https://h/sse")),
        ("Zed", {"context_servers": {"a": {**ENTRY, "source": "custom"}}}, LAUNCH),
        (
            "Zed",
            {"context_servers": {"a": {"command": {"path": "npx", "args": ["-y", "server"], "env": {"TOKEN": "a"}}}}},
            LAUNCH,
        ),
    ],
)
def test_a_server_of_each_program_is_found(tmp_path: Path, name: str, data: Any, launch: object) -> None:
    path = write(tmp_path, name, data)
    ((found,), problems) = find_servers(tmp_path, "linux")
    assert (found.program, found.path, found.config.name, found.config.launch) == (name, path, "a", launch)
    assert problems == ()


def test_claude_code_has_servers_for_a_project_too(tmp_path: Path) -> None:
    write(tmp_path, "Claude Code", {"projects": {"/work": {"mcpServers": {"a": ENTRY}}, "/other": {}, "/bad": 3}})
    ((found,), _) = find_servers(tmp_path, "linux")
    assert (found.project, found.config.launch) == ("/work", LAUNCH)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_system_has_its_places(tmp_path: Path, platform: str) -> None:
    paths = {each.path(tmp_path, platform, str(tmp_path / "Roaming")) for each in PROGRAMS}
    assert len(paths) == len(PROGRAMS)
    expected = {
        "linux": ".config/Claude/claude_desktop_config.json",
        "darwin": "Library/Application Support/Claude/claude_desktop_config.json",
        "win32": "Roaming/Claude/claude_desktop_config.json",
    }
    assert tmp_path / expected[platform] in paths


def test_a_broken_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    broken = write(tmp_path, "Cursor", "{")
    write(tmp_path, "LM Studio", {"mcpServers": {"a": ENTRY, "b": None, "c": {"url": 3}}})
    write(tmp_path, "Windsurf", {"mcpServers": ["no object"]})
    found, problems = find_servers(tmp_path, "linux")
    assert [(each.config.name, each.config.launch is not None) for each in found] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]
    assert len(problems) == 1
    assert str(broken) in problems[0]


def test_files_of_a_project_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": ENTRY}}), encoding="utf-8")
    monkeypatch.chdir(project)
    assert find_servers(tmp_path / "home", "linux") == ((), ())


@pytest.mark.slow
@given(VALUES)
def test_json_stays_what_it_is(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert json.loads(without_comments(text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // one\n "b": [1, 2,], /* two\n lines */ }', {"a": 1, "b": [1, 2]}),
        ('{"url": "http://h//p", "c": "/* no */", "d": "a,]"}', {"url": "http://h//p", "c": "/* no */", "d": "a,]"}),
        ('{"a": "\\"// no", // yes\n}', {"a": '"// no'}),
    ],
)
def test_comments_and_last_commas_are_left_out(text: str, value: object) -> None:
    assert json.loads(without_comments(text)) == value


def test_positions_stay() -> None:
    text = '{\n  /* a\n  b */ "x": 1,,\n}'
    plain = without_comments(text)
    assert len(plain) == len(text)
    assert plain.count("\n") == text.count("\n")
