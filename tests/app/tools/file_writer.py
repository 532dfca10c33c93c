"""A process that lets tools write, edit and undo files endlessly: the victim of kills.

    python file_writer.py TOP SEED

Works in TOP/project, with its data in TOP/data. Before anything changes, TOP/records has it on the disk, as the store
of chats would: a line of JSON with the changes of a call ({"changes": ...}) or those that are about to be undone
({"undoing": ...}), and {"undone": n} after that.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.protocol.chat import ToolCall
from app.tools.approval import Decision, ToolSettings
from app.tools.backend import CallRequest
from app.tools.builtin.servers import tool_runner
from app.tools.tool import FileChange, ToolOutcome, ToolResult
from tests.app.tools.fake import ScriptedApprover

__all__ = ["NAMES", "Writer"]

NAMES = ("a.txt", "b.txt", "run.sh", "new.txt", "made/c.txt", "made/deeper/d.txt")


class Writer:
    """Writes by the tools of a window in `top`."""

    def __init__(self, top: Path, chance: random.Random) -> None:
        self._project = top / "project"
        self._tools = tool_runner(top / "data")
        self._records = (top / "records").open("a", encoding="utf-8")
        self._chance = chance
        self._changes: list[FileChange] = []
        self._settings = ToolSettings(enabled=("files",), folders=(str(self._project),))

    async def work(self) -> None:
        """Write, edit and undo until killed."""
        print("ready", flush=True)
        number = 0
        while True:
            number += 1
            await self._step(number)

    async def _step(self, number: int) -> None:
        kind = self._chance.choice(["write", "write", "edit", "edit", "undo"])
        name = self._chance.choice(NAMES)
        path = self._project / name
        if kind == "undo" and self._changes:
            await self._undo(self._chance.randint(1, min(4, len(self._changes))))
        elif kind == "edit" and path.exists():
            begun = path.read_text(encoding="utf-8").split("\n", 1)[0]
            await self._call("edit_file", path=name, old_text=f"{begun}\n", new_text=f"edit {number}\n")
        else:
            filling = self._chance.choice("xyz") * self._chance.choice([0, 10, 5_000, 400_000])
            await self._call("write_file", path=name, content=f"write {number}\n{filling}\nend {number}\n")

    async def _call(self, name: str, **arguments: Any) -> None:
        async def update(result: ToolResult) -> None:
            if result.changes:
                self._record(changes=[asdict(change) for change in result.changes])

        call = ToolCall("1", name, json.dumps(arguments))
        approver = ScriptedApprover(Decision.ONCE)
        finished = await self._tools.run(CallRequest(call, self._settings, approver, on_update=update))
        assert finished.result.outcome is ToolOutcome.DONE, finished.text
        self._changes += finished.result.changes

    async def _undo(self, n_changes: int) -> None:
        undone = self._changes[-n_changes:]
        self._record(undoing=[asdict(change) for change in undone])
        await self._tools.undo(undone)
        del self._changes[-n_changes:]
        self._record(undone=n_changes)

    def _record(self, **record: Any) -> None:
        self._records.write(json.dumps(record) + "\n")
        self._records.flush()
        os.fsync(self._records.fileno())


if __name__ == "__main__":
    asyncio.run(Writer(Path(sys.argv[1]), random.Random(sys.argv[2])).work())
