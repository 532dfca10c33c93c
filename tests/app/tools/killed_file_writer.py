"""One trial: a process whose tools write files is killed, and its files are checked against what it had recorded.

Owns what counts as lost. Used by a test and, a hundred times, by tests/battery/kills/kill_tools.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.tools.file_history import FOLDER_NAME, FileHistory
from app.tools.tool import FileChange
from quantizer.system.errors import UserError
from quantizer.system.process import child_environment

__all__ = ["KilledTrial", "kill_a_file_writer"]

_WRITER = Path(__file__).with_name("file_writer.py")
_FIRST = {"a.txt": (b"first a\n", 0o644), "b.txt": (b"first b\r\nx\r\n", 0o600), "run.sh": (b"#!/bin/sh\n", 0o755)}


@dataclass(frozen=True, slots=True)
class KilledTrial:
    """What became of one kill: how many changes were recorded, whether one was cut off, and what is wrong."""

    n_changes: int
    was_cut_off: bool
    faults: tuple[str, ...]


@dataclass(slots=True)
class _Records:
    """What a writer recorded: the changes that are in force, those that it was undoing, and all that it ever named."""

    live: list[FileChange] = field(default_factory=list)
    undoing: list[FileChange] = field(default_factory=list)
    named: list[FileChange] = field(default_factory=list)
    expected: dict[str, set[str]] = field(default_factory=dict)  # digests that a path may have now


def kill_a_file_writer(top: Path, after_s: float, seed: str) -> KilledTrial:
    """Start a writer in `top`, kill it `after_s` seconds after it is ready, and see what is left."""
    project = top / "project"
    project.mkdir(parents=True)
    for name, (content, mode) in _FIRST.items():
        (project / name).write_bytes(content)
        (project / name).chmod(mode)
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen(
        [sys.executable, str(_WRITER), str(top), seed], stdout=subprocess.PIPE, env=environment
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(after_s)
        is_running = writer.poll() is None
        writer.kill()
    records = _read(top / "records")
    before = {path: _digest(Path(path)) for path in records.expected}
    faults = [] if is_running else ["the writer ended by itself"]
    faults += _check(project, FileHistory(top / "data" / FOLDER_NAME), records)
    last = records.named[-1] if records.named else None
    was_cut_off = bool(records.undoing) or (last is not None and before[last.path] == last.before)
    return KilledTrial(len(records.named), was_cut_off, tuple(faults))


def _read(path: Path) -> _Records:
    """Return what was recorded; a line that was cut off was not acknowledged, so nothing followed it."""
    records = _Records()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if not line.endswith("\n"):
            break
        record: dict[str, Any] = json.loads(line)
        if changes := [FileChange(**each) for each in record.get("changes", [])]:
            records.live += changes
            records.named += changes
            _expect(records, changes)
        elif changes := [FileChange(**each) for each in record.get("undoing", [])]:
            records.undoing = changes
            _expect(records, changes)
        else:
            del records.live[-record["undone"] :]
            records.undoing = []
    return records


def _expect(records: _Records, changes: Sequence[FileChange]) -> None:
    for change in changes:
        records.expected[change.path] = set()
    for change in changes:
        records.expected[change.path] |= {change.before, change.after}


def _check(project: Path, history: FileHistory, records: _Records) -> list[str]:
    """Return what is wrong with the files, their former contents, and taking all changes back."""
    faults = [
        f"{path} has a content that nobody wrote there"
        for path, digests in records.expected.items()
        if _digest(Path(path)) not in digests
    ]
    for digest in {each for change in records.named for each in (change.before, change.after) if each}:
        try:
            history.read(digest)
        except UserError as error:
            faults.append(f"a content is lost: {error}")
    try:
        history.sweep()
        if records.undoing:  # an undo that was cut off is repeated
            history.undo(records.undoing)
            del records.live[-len(records.undoing) :]
        history.undo(records.live)
    except UserError as error:
        return [*faults, f"the changes cannot be taken back: {error}"]
    found = {
        str(path.relative_to(project)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in project.rglob("*")
        if path.is_file()
    }
    if found != _FIRST:
        faults.append(f"after all was taken back there is {sorted(found)}")
    return faults


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
