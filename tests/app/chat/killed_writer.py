"""One trial: a writer of chats is killed, and the chats are checked for everything it had acknowledged.

Owns what counts as lost. Used by a test and, a hundred times, by tests/battery/kills/kill_chats.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.chat.conversation import Message, MessageState
from app.chat.store.chat_store import FILE_NAME, ChatStore
from quantizer.system.process import child_environment

__all__ = ["MAX_LOST_S", "Trial", "kill_a_writer"]

MAX_LOST_S = 1.0
_WRITER = Path(__file__).with_name("chat_writer.py")


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one kill: how many messages were acknowledged, for how long the oldest lost text of the running
    answer had been waiting (0: nothing lost), and what is wrong."""

    n_acknowledged: int
    lost_s: float
    faults: tuple[str, ...]


Judge = Callable[[Path, list[dict[str, Any]]], Iterable[str]]


def _no_other_faults(_data_dir: Path, _told: list[dict[str, Any]]) -> Iterable[str]:
    return ()


def kill_a_writer(
    data_dir: Path, after_s: float, writer_path: Path = _WRITER, other_faults: Judge = _no_other_faults
) -> Trial:
    """Start a writer on `data_dir`, kill it `after_s` seconds after its first words, and see what is left.

    `other_faults` finds what else is wrong, given what the writer told.
    """
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, str(writer_path), str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        lines = _Reader(writer.stdout.fileno())
        lines.read_for(after_s)
        killed_s = time.monotonic()
        writer.kill()
        told = [json.loads(line) for line in (first + lines.rest()).splitlines(keepends=True) if line.endswith(b"\n")]
    trial = _judge(data_dir, told, killed_s)
    return replace(trial, faults=(*trial.faults, *other_faults(data_dir, told)))


class _Reader:
    """Reads a pipe while time passes, so that the writer never waits for a reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""

    def read_for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._data += os.read(self._descriptor, 1 << 16)

    def rest(self) -> bytes:
        while more := os.read(self._descriptor, 1 << 16):
            self._data += more
        return self._data


def _judge(data_dir: Path, told: list[dict[str, Any]], killed_s: float) -> Trial:
    faults = [] if (health := _integrity(data_dir)) == "ok" else [f"integrity_check: {health}"]
    with ChatStore(data_dir) as store:
        (chat,) = store.chats.page()
        kept = {message.id: message for message in store.messages.of(chat.id)}
    acknowledged = [line for line in told if "kept" in line]
    for line in acknowledged:
        message = kept.get(int(str(line["kept"])))
        if message is None or message.content != line["content"] or message.state is not MessageState.FINISHED:
            faults.append(f"message {line['kept']} was acknowledged and is {message}")
    lost_s = _lost_s([line for line in told if "said" in line], kept, killed_s)
    if lost_s > MAX_LOST_S:
        faults.append(f"text that was {lost_s:.2f} s old is lost")
    return Trial(len(acknowledged), lost_s, tuple(faults))


def _integrity(data_dir: Path) -> str:
    with closing(sqlite3.connect(data_dir / FILE_NAME)) as connection:
        connection.execute("INSERT INTO messages_words (messages_words, rank) VALUES ('integrity-check', 1)")
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def _lost_s(said: list[dict[str, object]], kept: dict[int, Message], killed_s: float) -> float:
    """How old the first piece is that is missing from the answer that was running."""
    running_id = int(str(said[-1]["id"])) if said else 0
    pieces = [line for line in said if line["id"] == running_id]
    n_kept = len(kept[running_id].content) if running_id in kept else 0
    n_said = 0
    for line in pieces:
        n_said += len(str(line["said"]))
        if n_said > n_kept:
            return killed_s - float(str(line["at_s"]))
    return 0.0
