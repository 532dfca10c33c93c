"""Without the optional package everything but starting a server works, and nothing imports it early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# As if it was not installed: what is None in sys.modules cannot be imported.
_HIDDEN = "import sys; sys.modules.update(dict.fromkeys(('mcp', 'mcp_types', 'httpx2'))); "


def run(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LOCALLLM_CONFIG": str(tmp_path / "config.toml"), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", _HIDDEN + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def localllm(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(f"from app.cli.main import main; main({list(words)!r})", tmp_path)


@pytest.mark.parametrize("words", [("--help",), ("mcp", "--help"), ("mcp", "list"), ("mcp", "import", "--json")])
def test_help_and_the_list_work(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = localllm(tmp_path, *words)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)


@pytest.mark.slow
def test_servers_are_added_and_starting_one_says_what_to_run(tmp_path: Path) -> None:
    assert localllm(tmp_path, "mcp", "add", "a", "--", sys.executable, "--version").returncode == 0
    tested = localllm(tmp_path, "mcp", "test", "a")
    assert tested.returncode == 1
    assert "(the package mcp), which is not installed" in tested.stdout
    assert "mcp>=" in tested.stdout
    listed = localllm(tmp_path, "mcp", "list")
    assert listed.returncode == 0
    assert "is not installed" in listed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tui.run", "tui.app", "tui.inline.session", "app.tools.mcp.server", "app.cli.main"])
def test_what_starts_the_app_imports_none_of_it(module: str) -> None:
    report = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"mcp", "mcp_types", "httpx2", "app.tools.mcp.sdk"} & set(done.stdout.split())
