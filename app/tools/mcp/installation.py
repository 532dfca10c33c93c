"""Whether the package `mcp` is installed, and the command that installs it where this Python lives.

It is the optional extra `localllm[mcp]`; everything else works without it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from app.tools.mcp.errors import ToolError

REQUIREMENT = "mcp>=2.3,<3"


def is_installed() -> bool:
    """Return whether the package can be imported, without importing it."""
    try:
        return find_spec("mcp") is not None
    except ValueError:  # its place in sys.modules says that there is none
        return False


def check_installed() -> None:
    """Raise ToolError with what to run where the package is not installed."""
    if not is_installed():
        raise ToolError("MCP servers need the package mcp, which is not installed.", f"Run: {install_command()}")


def install_command(prefix: Path = Path(sys.prefix), executable: str = sys.executable) -> str:
    """Return the command that adds the package to the environment at `prefix`: made by pipx, uv or pip."""
    parents = prefix.resolve().parts
    if "pipx" in parents:
        return _quoted("pipx", "inject", "localllm", REQUIREMENT)
    if "uv" in parents and "tools" in parents:
        return _quoted("uv", "tool", "install", "--with", REQUIREMENT, "localllm")
    if _is_of_uv(prefix):
        return _quoted("uv", "pip", "install", "--python", executable, REQUIREMENT)
    return _quoted(executable, "-m", "pip", "install", REQUIREMENT)


def _is_of_uv(prefix: Path) -> bool:
    """Return whether uv made the environment: it has no pip then."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _quoted(*words: str) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
