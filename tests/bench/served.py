"""A real service in a process of its own, as a benchmark holds it: started, watched, ended.

Owns the process and what can be seen of it and of its worker. Knows nothing of what they are asked.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.bench.workloads import RandomText
from quantizer.system.process import python_command

__all__ = ["Footprint", "Served", "footprint", "free_port", "n_answered_in_all_cells", "serve", "wait_ready"]

_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds. `n_handles` are its open files and sockets (on Windows: handles)."""

    n_handles: int
    n_threads: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Served:
    """A service that has its model loaded, on `port` of 127.0.0.1."""

    port: int
    http: httpx.Client
    process: psutil.Process
    cache_dir: Path

    def model(self) -> dict[str, Any]:
        """Return the status of the model."""
        model: dict[str, Any] = self.http.get("/api/localllm/status").json()["models"][0]
        return model

    def n_in_engine(self) -> int:
        """Return how many answers hold cells or wait for some, in the worker's own count."""
        occupancy = self.model()["occupancy"]
        return int(occupancy["n_running"] + occupancy["n_waiting"])

    def saved_bytes(self) -> int:
        """Return how much the worker has saved: it keeps that in its memory too, as far as it may."""
        return sum(path.stat().st_size for path in self.cache_dir.glob("prefix/*/*"))

    @property
    def worker(self) -> psutil.Process:
        return psutil.Process(self.model()["worker_pid"])


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def footprint(process: psutil.Process) -> Footprint:
    """Return what `process` holds now."""
    n_handles = process.num_handles() if sys.platform == "win32" else process.num_fds()
    return Footprint(n_handles, process.num_threads(), process.memory_info().rss)


def n_answered_in_all_cells(served: Served, n_answers: int) -> int:
    """Return how many of `n_answers` that together need every cell are given: a cell that was kept is missing."""
    model = served.model()
    n_each = min(model["occupancy"]["n_cells"] // n_answers, model["n_ctx"]) - 2
    text = RandomText(seed=2**31).words(n_answers * n_each)
    tokens = served.http.post("/tokenize", json={"content": text}).json()["tokens"]
    prompts = [tokens[n_each * number :][:n_each] for number in range(n_answers)]
    with ThreadPoolExecutor(n_answers) as pool:
        return sum(pool.map(lambda prompt: _is_answered(served, prompt), prompts))


def _is_answered(served: Served, prompt: list[int]) -> bool:
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    return served.http.post("/v1/completions", json=body).status_code == 200


@contextmanager
def serve(model: Path, port: int, *flags: str, **settings: str) -> Iterator[Served]:
    """Serve `model` with `flags` of `localllm serve` and `settings`; folders that these do not name go with it."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("DATA_DIR", "CACHE_DIR", "CONFIG")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
        own = {f"LOCALLLM_{name}": str(Path(folder, name.lower())) for name in names}
        told = own | {f"LOCALLLM_{name.upper()}": value for name, value in settings.items()}
        command = python_command("app.cli.main", "serve", "--owned", "--model", str(model), "--port", str(port), *flags)
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean | told) as process,
            httpx.Client(trust_env=False, timeout=_READY_TIMEOUT_S) as http,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            http.base_url = httpx.URL(json.loads(process.stdout.readline())["url"])
            served = Served(
                http.base_url.port or 0, http, psutil.Process(process.pid), Path(told["LOCALLLM_CACHE_DIR"])
            )
            wait_ready(served)
            yield served
            process.stdin.close()


def wait_ready(served: Served) -> None:
    """Wait until the model is loaded; ends the program where it cannot be."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while (model := served.model())["state"] != "ready":
        if model["error"] or time.monotonic() > deadline_s:
            sys.exit(f"The model is not ready: {model}")
        time.sleep(_POLL_S)
