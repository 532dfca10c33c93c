"""Print what memory a model takes by context: planned, held after a prompt, and what llama-server holds for the same.

Run: `uv run python tests/bench/peer/memory_table.py LLAMA_SERVER MODEL.gguf... [--contexts N...] [--words N]`. Each
server is started alone, answers one prompt, and is measured with all its processes: `held` counts mapped weights,
`private` only what no file has. Needs no quiet machine. Exits with 1 where ours holds more than `AIM` times what the
peer holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.table import Table

from app.bench.client import BenchClient
from app.bench.workloads import RandomText
from offload.format import format_memory
from quantizer.system.process import python_command
from tests.bench.peer.memory import Memory, memory_of
from tests.bench.peer.peer import serve_peer
from tests.bench.report import show
from tests.bench.served import serve

__all__ = ["AIM"]

AIM = 1.05
_TIMEOUT_S = 300.0
_N_ANSWER = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One model and context. `planned_bytes` are those of the model; what is held includes the programs themselves."""

    model: str
    n_ctx: int
    n_cells: int
    planned_bytes: int
    worker: Memory
    ours: Memory
    theirs: Memory

    @property
    def ratio(self) -> float:
        return self.ours.rss_bytes / self.theirs.rss_bytes


def measure(binary: Path, model: Path, n_ctx: int, prompt: str) -> Row:
    """Start both servers, one after the other, and let each answer `prompt`."""
    plan = _planned(model, n_ctx)
    host = plan["devices"][0]
    with serve(model, 0, ctx=str(n_ctx)) as served:
        _answer(served.http, prompt)
        ours, worker = memory_of(served.process.pid), memory_of(served.worker.pid)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_peer(binary, model, Path(folder), ("-c", str(n_ctx))) as (url, process_id),
        httpx.Client(base_url=url, trust_env=False, timeout=_TIMEOUT_S) as http,
    ):
        asyncio.run(_wait_ready(url))
        _answer(http, prompt)
        theirs = memory_of(process_id)
    planned_bytes = sum(host[name] for name in ("weights_bytes", "kv_bytes", "compute_bytes"))
    return Row(model.stem, n_ctx, plan["setting"]["cells"], planned_bytes, worker, ours, theirs)


def _planned(model: Path, n_ctx: int) -> dict[str, Any]:
    command = python_command("app.cli.main", "plan", str(model), "--ctx", str(n_ctx), "--json")
    plan: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return plan


async def _wait_ready(url: str) -> None:
    async with BenchClient(url) as client:
        await client.wait_ready(_TIMEOUT_S)


def _answer(http: httpx.Client, prompt: str) -> None:
    body = {"prompt": prompt, "max_tokens": _N_ANSWER, "ignore_eos": True}
    http.post("/v1/completions", json=body, timeout=_TIMEOUT_S).raise_for_status()


def cells(row: Row) -> Iterator[str]:
    """Yield the cells of the table's row."""
    yield from (row.model, f"{row.n_ctx:,}", f"{row.n_cells:,}")
    sizes = (row.planned_bytes, row.worker.rss_bytes, row.ours.rss_bytes, row.theirs.rss_bytes)
    yield from map(format_memory, sizes)
    yield from (f"{row.ratio:.2f}", *map(format_memory, (row.ours.private_bytes, row.theirs.private_bytes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server", type=Path, metavar="LLAMA_SERVER", help="the program to compare with")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768], metavar="N")
    parser.add_argument("--words", type=int, default=600, help="of the prompt (600)")
    options = parser.parse_args()
    prompt = RandomText(seed=1).words(options.words)
    rows = [measure(options.llama_server, model, n, prompt) for model in options.models for n in options.contexts]
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for name in ("context", "cells", "planned", "worker", "held", "theirs", "×", "private", "theirs"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*cells(row))
    show(table)
    sys.exit(any(row.ratio > AIM for row in rows))


if __name__ == "__main__":
    main()
