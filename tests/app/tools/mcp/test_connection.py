"""The command that installs the package `mcp` fits the environment that this Python lives in."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from app.tools.mcp.config import ToolError
from app.tools.mcp.connection import REQUIREMENT, check_installed, install_command, is_installed

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("prefix", "begin"),
    [
        ("share/pipx/venvs/localllm", "pipx inject localllm"),
        ("share/uv/tools/localllm", "uv tool install --with"),
        ("work/.venv", "/bin/python -m pip install"),
    ],
)
def test_the_command_fits_how_localllm_was_installed(tmp_path: Path, prefix: str, begin: str) -> None:
    command = install_command(tmp_path / prefix, "/bin/python")
    assert command.startswith(begin)
    assert REQUIREMENT in command


def test_an_environment_of_uv_has_no_pip(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.13.9\n", encoding="utf-8")
    assert install_command(tmp_path, "/bin/python").startswith("uv pip install --python /bin/python")


def test_without_the_package_the_error_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert not is_installed()
    with pytest.raises(ToolError, match=r"not installed\. Run: .*mcp>="):
        check_installed()


def test_the_extra_asks_for_what_the_command_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["mcp"] == [REQUIREMENT]
    assert REQUIREMENT in project["dependency-groups"]["dev"]
