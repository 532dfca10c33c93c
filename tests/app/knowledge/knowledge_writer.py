"""Reads a folder and computes vectors over and over, each time with other texts in it, and prints what is committed:
the process that `killed_reader` kills."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from app.knowledge.embedding import embed_passages
from app.knowledge.reading import read_folder
from app.knowledge.store import KnowledgeStore
from tests.app.knowledge.models import EMBEDDER, TopicModels

N_FILES, N_PASSAGES = 12, 6


def text_of(number: int, version: int) -> str:
    """Return the text of a file: each of its passages names the version."""
    return "\n\n".join(f"file {number} version {version} part {part} " + "word " * 150 for part in range(N_PASSAGES))


def write_files(top: Path, version: int) -> None:
    """Write two thirds of the files, each at once: a kill must not leave half of one."""
    for number in range(N_FILES):
        if (number + version) % 3:
            partial = top.with_name("partial")
            partial.write_text(text_of(number, version))
            partial.replace(top / f"{number}.txt")


def versions_in(top: Path) -> dict[str, str]:
    return {path.name: path.read_text().split()[3] for path in top.iterdir()}


async def _run(data_dir: Path, top: Path) -> None:
    with KnowledgeStore(data_dir) as store:
        folder = store.add_folder(top)
        store.use_embedder(EMBEDDER)
        version = 0
        while True:
            write_files(top, version)
            *_, progress = read_folder(store, folder)
            versions = versions_in(top)
            async for _ in embed_passages(store, TopicModels(), EMBEDDER):
                pass
            print(json.dumps({"versions": versions, "n_read": progress.n_read}), flush=True)
            version += 1


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), Path(sys.argv[2])))
