"""Which agents are on this machine: their command on PATH, and the version that their package says.

Owns the look-up. Runs nothing: a version is read from the files beside the command.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from app.launch.agents import Agent
from quantizer.system.errors import UserError

_N_PARENTS = 6  # from a command to the folder of its package


class MissingAgentError(UserError):
    """An agent that is not on PATH."""

    def __init__(self, agent: Agent) -> None:
        how = agent.install if agent.install.startswith("see ") else f"install it with `{agent.install}`"
        super().__init__(
            f"{agent.title} is not installed: there is no {agent.commands[0]} on PATH.", f"To use it, {how}."
        )


@dataclass(frozen=True, slots=True)
class Installed:
    """The path of an agent's command, with the suffix that Windows needs; `version` is empty where it is unknown."""

    path: str
    version: str


def find_agent(agent: Agent) -> Installed | None:
    """Return where `agent` is installed, None where it is not."""
    path = next(filter(None, map(shutil.which, agent.commands)), None)
    return None if path is None else Installed(path, _version(agent.package, Path(path)))


def _version(package: str, command: Path) -> str:
    registry, _, name = package.partition(":")
    try:
        if registry == "npm":
            return _npm_version(name, command)
        return _python_version(name, command) if registry == "pypi" else ""
    except (OSError, ValueError):
        return ""


def _npm_version(name: str, command: Path) -> str:
    """Return the version in package.json: above the file that a link leads to, or beside a shim of Windows."""
    above = [folder / "package.json" for folder in islice(command.resolve().parents, _N_PARENTS)]
    for path in (*above, command.parent / "node_modules" / name / "package.json"):
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.get("name") == name:
                return _plain(data.get("version"))
    return ""


def _python_version(name: str, command: Path) -> str:
    """Return the version in the name of the package's metadata, in the environment of the command."""
    environment, wheel = command.resolve().parent.parent, name.replace("-", "_")
    for pattern in (f"lib/python*/site-packages/{wheel}-*.dist-info", f"Lib/site-packages/{wheel}-*.dist-info"):
        for folder in environment.glob(pattern):
            return _plain(folder.name.removeprefix(f"{wheel}-").removesuffix(".dist-info"))
    return ""


def _plain(version: object) -> str:
    """Return a version that can be printed, "" for anything else."""
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,40}", version) else ""
