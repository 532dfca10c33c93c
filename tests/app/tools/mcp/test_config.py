"""Entries of mcp.json: those that others write are understood, those that make no sense say why."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from app.tools.mcp.config import (
    HttpLaunch,
    McpFile,
    OAuthClient,
    StdioLaunch,
    ToolError,
    config_of,
    expanded,
    identity_of,
    launch_entry,
    mcp_file,
)
from app.tools.mcp.server import mcp_servers
from quantizer.system.errors import UsageError

LAUNCHES = (
    StdioLaunch("npx", ("-y", "server"), {"TOKEN": "${TOKEN}"}, "/work"),
    StdioLaunch("server"),
    HttpLaunch("https://example.org/mcp", {"Authorization": "Bearer ${TOKEN}"}, "http"),
    HttpLaunch("${URL}", {}, "sse"),
    HttpLaunch("https://example.org/mcp", oauth=OAuthClient("mine", "${SECRET}", 8400)),
)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_an_entry_says_what_its_launch_was(launch: StdioLaunch | HttpLaunch) -> None:
    config = config_of("a", launch_entry(launch, timeout_s=5))
    assert (config.launch, config.timeout_s, config.problem) == (launch, 5, "")


def test_identities_differ_where_launches_do() -> None:
    assert len({identity_of(launch) for launch in LAUNCHES}) == len(LAUNCHES)


@pytest.mark.parametrize(
    ("entry", "launch"),
    [
        ({"command": "a", "type": "stdio", "args": []}, StdioLaunch("a")),
        ({"command": "a", "env": None, "unknown": {"kept": 1}}, StdioLaunch("a")),
        (
            {"url": "http://127.0.0.1:1/mcp", "type": "streamable-http"},
            HttpLaunch("http://127.0.0.1:1/mcp", {}, "http"),
        ),
        ({"url": "http://127.0.0.1:1/mcp"}, HttpLaunch("http://127.0.0.1:1/mcp")),
    ],
)
def test_forms_of_other_programs_are_understood(entry: dict[str, Any], launch: object) -> None:
    assert config_of("a", entry).launch == launch


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (None, "must be an object"),
        ({}, "neither `command` nor `url`"),
        ({"command": 3}, "`command` must be a text"),
        ({"command": "a\0b"}, "`command` must be a text"),
        ({"command": "a", "url": "http://h"}, "both"),
        ({"command": "a", "args": "b"}, "`args` must be a list of texts"),
        ({"command": "a", "args": [1]}, "`args` must be a list of texts"),
        ({"command": "a", "env": {"A": 1}}, "`env` must be an object"),
        ({"command": "a", "type": "sse"}, "needs a `url`"),
        ({"command": "a", "disabled": "yes"}, "`disabled` must be true or false"),
        ({"command": "a", "timeout_s": 0}, "`timeout_s` must be a number"),
        ({"command": "a", "timeout_s": True}, "`timeout_s` must be a number"),
        ({"command": "a", "timeout_s": float("nan")}, "`timeout_s` must be a number"),
        ({"command": "a", "timeout_s": 10**400}, "`timeout_s` must be a number"),
        ({"url": "file:///etc/passwd"}, "must begin with http"),
        ({"url": "http://["}, "must begin with http"),
        ({"url": "http://h", "type": "carrier pigeon"}, "http or sse"),
        ({"url": "http://h", "headers": {"A": "b\r\nC: d"}}, "one line"),
        ({"url": "http://h", "headers": {"a b": "c"}}, "not a header name"),
    ],
)
def test_an_entry_that_makes_no_sense_says_why(entry: object, problem: str) -> None:
    config = config_of("a", entry)
    assert config.launch is None
    assert problem in config.problem


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[2J", "x" * 65, " a"])
def test_names_are_short_and_printable(name: str) -> None:
    assert "name" in config_of(name, {"command": "a"}).problem


ENVIRONMENT = {"TOKEN": "abc", "EMPTY": "", "NESTED": "${TOKEN}"}


def of(text: str) -> str:
    launch = expanded(StdioLaunch(text), ENVIRONMENT)
    assert isinstance(launch, StdioLaunch)
    return launch.command


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain $TOKEN {TOKEN}", "plain $TOKEN {TOKEN}"),
        ("${TOKEN}-${env:TOKEN}", "abc-abc"),
        ("${MISSING:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${TOKEN:-other}", "abc"),
        ("${MISSING:-}", ""),
        ("${NESTED}", "${TOKEN}"),  # a value is not read again
        ("${userHome}", str(Path.home())),
    ],
)
def test_a_variable_is_replaced(text: str, value: str) -> None:
    assert of(text) == value


@pytest.mark.parametrize(
    ("text", "cause"), [("${MISSING}", "has no MISSING"), ("${input:key}", "does not know"), ("${}", "does not know")]
)
def test_one_that_has_no_value_is_named(text: str, cause: str) -> None:
    with pytest.raises(ToolError, match=cause):
        of(text)


def test_every_text_of_an_entry_may_have_variables() -> None:
    launch = StdioLaunch("a", ("--token=${TOKEN}",), {"KEY": "${TOKEN}"}, "/${TOKEN}")
    assert expanded(launch, ENVIRONMENT) == StdioLaunch("a", ("--token=abc",), {"KEY": "abc"}, "/abc")
    assert expanded(HttpLaunch("http://h/${TOKEN}", {"A": "Bearer ${TOKEN}"}, "sse"), ENVIRONMENT) == HttpLaunch(
        "http://h/abc", {"A": "Bearer abc"}, "sse"
    )


def test_it_lies_beside_the_settings_file(tmp_path: Path) -> None:
    assert mcp_file({"LOCALLLM_CONFIG": str(tmp_path / "config.toml")}).path == tmp_path / "mcp.json"


@pytest.mark.parametrize("text", [None, "", "{}", '{"other": 1}'])
def test_without_servers_there_are_none(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert McpFile(path).servers() == ()


def test_a_change_keeps_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "mcp.json"
    before = {"inputs": [1], "mcpServers": {"a": {"command": "ü", "unknown": {"x": [1]}}}, "last": None}
    path.parent.mkdir()
    path.write_text(json.dumps(before), encoding="utf-8")
    file = McpFile(path)
    file.add("b", {"url": "http://h"})
    assert json.loads(path.read_text("utf-8")) == {
        **before,
        "mcpServers": {**before["mcpServers"], "b": {"url": "http://h"}},  # type: ignore[dict-item]
    }
    file.remove("b")
    assert json.loads(path.read_text("utf-8")) == before
    assert list(json.loads(path.read_text("utf-8"))) == list(before)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_that_is_taken_or_missing_is_an_error(tmp_path: Path) -> None:
    file = McpFile(tmp_path / "mcp.json")
    file.add("a", {"command": "x"})
    with pytest.raises(UsageError, match="already"):
        file.add("a", {"command": "y"})
    file.add("a", {"command": "z"}, is_replacing=True)
    with pytest.raises(UsageError, match=r"no server 'b'\. Servers: a\."):
        file.remove("b")
    with pytest.raises(UsageError, match="neither"):
        file.add("c", {})
    assert [config.name for config in file.servers()] == ["a"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{\n  "mcpServers": {\n    "a": {"command": "x",}\n  }\n}', "line 3, column"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "'a' twice"),
        ("[]", "no JSON object"),
        ('{"mcpServers": []}', "is not an object"),
        pytest.param("[" * 100_000, "cannot be read", id="nested"),
        pytest.param("{" + " " * (4 << 20) + "}", "larger than 4 MiB", id="large"),
    ],
)
def test_a_broken_file_says_what_and_where_and_stays(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text, encoding="utf-8")
    file = McpFile(path)
    with pytest.raises(UsageError, match=cause):
        file.servers()
    with pytest.raises(UsageError, match=cause):
        file.add("b", {"command": "x"})
    assert path.read_text("utf-8") == text


def test_a_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        McpFile(path).servers()


def test_servers_of_a_window_leave_the_disabled_out_and_start_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entries = {"files": {"command": "no-such-command"}, "off": {"command": "x", "disabled": True}, "bad": 3}
    path.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    servers = mcp_servers(McpFile(path))
    assert [(server.name, server.status().state) for server in servers] == [("files_2", "stopped"), ("bad", "failed")]
    assert servers[0].status().origin == str(path)


def test_a_broken_file_is_one_failed_server_for_a_window(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{", encoding="utf-8")
    (server,) = mcp_servers(McpFile(path))
    assert (server.name, server.status().state) == ("mcp_json", "failed")
    assert "line 1, column 2" in server.status().problem


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes")
def test_a_file_that_everybody_can_change_names_no_commands(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o666)
    with pytest.raises(UsageError, match=r"Everybody can change .* chmod o-w"):
        McpFile(path).servers()
