from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from app.tools.mcp.config import ToolError
from app.tools.mcp.connection import REQUIREMENT, check_installed, is_installed

ROOT = Path(__file__).parents[4]


def test_without_the_package_the_error_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert not is_installed()
    with pytest.raises(ToolError, match=r"not installed\. Run: .*mcp>="):
        check_installed()


def test_the_extra_asks_for_what_the_command_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["mcp"] == [REQUIREMENT]
    assert REQUIREMENT in project["dependency-groups"]["dev"]
