"""The task of every coding agent here: read a note, edit a file as it says, and run the test of that file.

What an agent is given by a tool holds what the fake model says next, so that each step follows from the one before:
the question reads `note.txt`, which edits `value.py` and reads `next.txt`, which runs `test_value.py`, which prints
what the model says last, if the edit was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asking import SAID, call, say

OLD, NEW = "VALUE = 1", "VALUE = 2"
FILE, TEST = "value.py", "test_value.py"
RUN_TEST = f"python3 {TEST}"
FAILED = "The test fails."


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """An agent's tools: their names and those of their parameters. Without `read` or `edit` its shell does that."""

    shell: str
    command: str = "command"
    takes_several: bool = False  # the shell: a list of commands
    are_escaped: bool = False  # its results come as JSON, whose text is no call: all calls are in the question then
    of_shell: Mapping[str, Any] = field(default_factory=dict)  # what it wants besides
    read: str = ""
    path: str = ""
    of_read: Mapping[str, Any] = field(default_factory=dict)
    edit: str = ""
    edit_path: str = ""  # where it differs from `path`
    old: str = ""
    new: str = ""
    edits: str = ""  # where the edits are in a list
    of_edit: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, command: str) -> str:
        return call(self.shell, **{self.command: [command] if self.takes_several else command}, **self.of_shell)

    def reads(self, file: Path) -> str:
        if not self.read:
            return self.runs(f"cat {file.name}")
        return call(self.read, **{self.path: str(file)}, **self.of_read)

    def edits_value(self, file: Path) -> str:
        if not self.edit:
            patch = f"*** Begin Patch\n*** Update File: {file.name}\n@@\n-{OLD}\n+{NEW}\n*** End Patch"
            return self.runs(f"apply_patch <<'EOF'\n{patch}\nEOF")
        change = {self.old: OLD, self.new: NEW}
        named = {self.edits: [change]} if self.edits else change
        return call(self.edit, **{self.edit_path or self.path: str(file)}, **named, **self.of_edit)


def set_up(folder: Path, tools: Tools) -> str:
    """Write the files of the task, and return the question."""
    value, note, following = (folder / name for name in (FILE, "note.txt", "next.txt"))
    value.write_text(f"{OLD}\n", encoding="utf-8")
    write_test(folder)
    note.write_text(f"{say(tools.edits_value(value) + tools.reads(following))}\n", encoding="utf-8")
    following.write_text(f"{say(tools.runs(RUN_TEST))}\n", encoding="utf-8")
    if tools.are_escaped:
        return say(tools.reads(value) + tools.edits_value(value) + tools.runs(RUN_TEST))
    return say(tools.reads(value) + tools.reads(note))  # some edit only what they have read


def write_test(folder: Path) -> None:
    good, bad = say(SAID), say(FAILED)
    text = f"import sys\nfrom value import VALUE\n\nprint({good!r} if VALUE == 2 else {bad!r})\nsys.exit(VALUE != 2)\n"
    (folder / TEST).write_text(text, encoding="utf-8")


def is_done(folder: Path) -> bool:
    return (folder / FILE).read_text(encoding="utf-8") == f"{NEW}\n"
