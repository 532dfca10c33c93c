"""A command of the person's own, typed as `!command`: what counts as one, and how it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Attachment
from app.common.terminal import printable_paste

if TYPE_CHECKING:
    from app.tools.builtin.processes import Ended

SIGN = "!"
_MAX_S = 24 * 3600.0
_NAME_CHARACTERS = 40


def shell_command(text: str) -> str:
    """Return the command of a line such as `!git status`; empty for any other text. A space before the sign makes it a
    question."""
    return text[len(SIGN) :].strip() if text.startswith(SIGN) and "\n" not in text.strip() else ""


@dataclass(frozen=True, slots=True)
class ShellRun:
    """A command that has ended, its printable output, and how it ended."""

    command: str
    output: str
    status: int | None
    how: str

    @property
    def attachment(self) -> Attachment | None:
        """The output for the next question; None if there is none."""
        if not self.output.strip():
            return None
        name = self.command if len(self.command) <= _NAME_CHARACTERS else f"{self.command[: _NAME_CHARACTERS - 1]}…"
        text = f"$ {self.command}\n{self.output.rstrip()}\n[{self.how}]"
        return Attachment(f"{SIGN}{name}", text)


async def run_shell_command(
    command: str,
    folder: Path,
    on_output: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
    variables: Sequence[str] = (),
) -> ShellRun:
    """Run `command` by the person's shell in `folder`, with the rights of the person and those variables of
    `environment` that commands get, without input: its output may go to a model. `variables` are those that the setting
    adds. `on_output` gets its printable output as it comes. Cancelling ends the command and all that it started. Raises
    EngineError if the system cannot start it."""
    from app.tools.builtin.processes import run_to_end  # psutil: not before the first frame
    from app.tools.environment import SETTING, command_environment

    def show(data: bytes) -> None:
        on_output(_text(data))

    # Windows' own rule for COMSPEC is in subprocess; elsewhere it would take /bin/sh, which few people type for.
    shell = None if sys.platform == "win32" else environment.get("SHELL") or None
    passed = command_environment(environment, variables)
    ended = await run_to_end(command, shell, folder, passed.variables, _MAX_S, show)
    missed = passed.withheld_in([command])
    note = f"; not passed: {', '.join(missed)} ({SETTING} adds names)" if missed else ""
    return ShellRun(command, _text(ended.output), ended.status, _how(ended) + note)


def _text(data: bytes) -> str:
    return printable_paste(data.decode("utf-8", "replace"))


def _how(ended: Ended) -> str:
    if ended.reason:
        return f"stopped: {ended.reason}"
    status = ended.status or 0
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
