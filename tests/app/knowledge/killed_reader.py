"""One trial: a process that reads a folder is killed, and what it stored is checked: nothing that was committed is
lost, no file is half old and half new, and the next update makes all of it whole.

Used by a test and, a hundred times, by tests/battery/kills/kill_knowledge.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from app.knowledge.embedding import embed_passages
from app.knowledge.reading import read_folder
from app.knowledge.store import FILE_NAME, KnowledgeStore
from quantizer.system.process import child_environment
from tests.app.knowledge.knowledge_writer import N_PASSAGES, versions_in
from tests.app.knowledge.models import EMBEDDER, TopicModels

__all__ = ["Trial", "kill_a_reader"]

_WRITER = Path(__file__).with_name("knowledge_writer.py")


@dataclass(frozen=True, slots=True)
class Trial:
    """How many updates were acknowledged before the kill, and what is wrong."""

    n_acknowledged: int
    faults: tuple[str, ...]


def kill_a_reader(folder: Path, after_s: float) -> Trial:
    """Start a reader, kill it `after_s` seconds after its first update, and see what is left."""
    data_dir, top = folder / "data", folder / "top"
    top.mkdir(parents=True)
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, str(_WRITER), str(data_dir), str(top)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline()]
        reader = Thread(target=lambda out: told.extend(out), args=(writer.stdout,))
        reader.start()
        time.sleep(after_s)
        writer.kill()
        reader.join()
    updates = [json.loads(line) for line in told if line.endswith(b"\n")]
    return Trial(len(updates), tuple(_faults(data_dir, top, updates[-1]["versions"] if updates else {})))


def _faults(data_dir: Path, top: Path, acknowledged: dict[str, str]) -> Iterator[str]:
    with closing(sqlite3.connect(data_dir / FILE_NAME)) as connection:
        (state,) = connection.execute("PRAGMA integrity_check").fetchone()
        if state != "ok":
            yield f"the database is damaged: {state}"
        connection.execute("INSERT INTO passage_words (passage_words, rank) VALUES ('integrity-check', 1)")
        rows = connection.execute(
            "SELECT files.path, text FROM passages JOIN files ON files.id = file_id ORDER BY passages.id"
        ).fetchall()
    stored: dict[str, list[str]] = {}
    for path, text in rows:
        stored.setdefault(path.decode(), []).append(re.findall(r"version (\d+)", text)[0])
    for name, version in acknowledged.items():
        versions = stored.get(name, [])
        if len(versions) != N_PASSAGES or len(set(versions)) != 1:
            yield f"{name} is not whole: versions {versions}"
        elif int(versions[0]) < int(version):
            yield f"{name} is of version {versions[0]}, {version} was acknowledged"
    yield from asyncio.run(_faults_after_an_update(data_dir, top))


async def _faults_after_an_update(data_dir: Path, top: Path) -> list[str]:
    with KnowledgeStore(data_dir) as store:
        (folder,) = store.folders()
        list(read_folder(store, folder))
        async for _ in embed_passages(store, TopicModels(), EMBEDDER):
            pass
        (summary,) = store.summaries()
    n_files = len(versions_in(top))
    expected = (n_files, n_files * N_PASSAGES, n_files * N_PASSAGES)
    found = (summary.n_files, summary.n_passages, summary.n_embedded)
    return [] if found == expected else [f"after an update: {found} instead of {expected}"]
