"""The file mcp.json: read with clear errors, changed without losing anything."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from app.tools.mcp.config.file import McpFile, mcp_file
from app.tools.mcp.server import mcp_servers
from quantizer.system.errors import UsageError


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
        ('{"mcpServers": []}', "is no object"),
        ("[" * 100_000, "cannot be read"),
        ("{" + " " * (4 << 20) + "}", "larger than 4 MiB"),
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
