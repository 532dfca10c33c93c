"""The optional packages of localllm, each behind an extra: whether one is there, and what to run where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from quantizer.system.errors import UsageError
from quantizer.system.installation import add_command, find_installation


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra `name`, what it is for ("Sounds"), and its package: the module to import and the requirement, which
    pyproject.toml has too."""

    name: str
    purpose: str
    module: str
    requirement: str

    @property
    def is_installed(self) -> bool:
        """Whether the module can be imported, found out without importing it."""
        try:
            return find_spec(self.module) is not None
        except ValueError:  # its place in sys.modules says that there is none
            return False

    @property
    def missing(self) -> UsageError:
        """The error of who needs the package where it is not installed."""
        needed = f"the extra `{self.name}` of localllm (the package {self.module})"
        return UsageError(
            f"{self.purpose} need {needed}, which is not installed.",
            f"Run: {add_command(find_installation(), self.requirement)}",
        )


# miniaudio has no wheels for Linux on ARM and for Windows on ARM: there it needs a C compiler.
AUDIO = Extra("audio", "Sounds", "miniaudio", "miniaudio>=1.61,<2")
MCP = Extra("mcp", "MCP servers", "mcp", "mcp>=2.3,<3")
