from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.launch.agents import Agent, agent_named
from app.launch.installed import Installed, MissingAgentError, find_agent


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _agent(name: str) -> Agent:
    agent = agent_named(name)
    assert agent is not None
    return agent


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")  # finding it must not run it
    path.chmod(0o755)
    return path


def _package(folder: Path, name: str, version: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": name, "version": version}), encoding="utf-8")


def test_a_command_that_is_not_on_the_path_is_missing_with_how_to_install_it(bin_folder: Path) -> None:
    assert find_agent(_agent("claude")) is None
    assert "uv tool install --python 3.12 aider-chat" in str(MissingAgentError(_agent("aider")))
    assert str(MissingAgentError(_agent("zed"))).endswith("To use it, see https://zed.dev/download.")


def test_the_version_of_npm_is_above_the_file_that_its_link_leads_to(bin_folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "@openai" / "codex"
    _package(package, "@openai/codex", "0.169.0")
    _package(tmp_path / "lib", "something-else", "9.9")
    (bin_folder / "codex").symlink_to(_executable(package / "bin" / "codex.js"))
    assert find_agent(_agent("codex")) == Installed(str(bin_folder / "codex"), "0.169.0")


def test_the_version_beside_a_batch_file_of_npm_is_found(bin_folder: Path) -> None:
    command = _executable(bin_folder / "pi")
    _package(bin_folder / "node_modules" / "@mariozechner" / "pi-coding-agent", "@mariozechner/pi-coding-agent", "1.0")
    assert find_agent(_agent("pi")) == Installed(str(command), "1.0")


@pytest.mark.parametrize("site", ["lib/python3.12/site-packages", "Lib/site-packages"])
def test_the_version_of_a_python_tool_is_in_its_environment(bin_folder: Path, tmp_path: Path, site: str) -> None:
    tool = tmp_path / "tools" / "aider-chat"
    (tool / site / "aider_chat-0.86.2.dist-info").mkdir(parents=True)
    (bin_folder / "aider").symlink_to(_executable(tool / "bin" / "aider"))
    assert find_agent(_agent("aider")) == Installed(str(bin_folder / "aider"), "0.86.2")


@pytest.mark.parametrize("version", [None, 7, "1.0\x1b[31m", "x" * 80])
def test_a_version_that_is_none_is_unknown(bin_folder: Path, version: object) -> None:
    _executable(bin_folder / "codex")
    _package(bin_folder / "node_modules" / "@openai" / "codex", "@openai/codex", version)
    found = find_agent(_agent("codex"))
    assert found is not None
    assert found.version == ""


def test_a_damaged_package_file_makes_the_version_unknown(bin_folder: Path) -> None:
    _executable(bin_folder / "codex")
    (bin_folder / "package.json").write_text("{", encoding="utf-8")
    found = find_agent(_agent("codex"))
    assert found is not None
    assert found.version == ""


def test_a_command_goes_by_another_name_on_some_systems(bin_folder: Path) -> None:
    found = find_agent(_agent("zed")), _executable(bin_folder / "zeditor"), find_agent(_agent("zed"))
    assert found[0] is None
    assert found[2] == Installed(str(found[1]), "")
