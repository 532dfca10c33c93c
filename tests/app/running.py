"""A service in a process of its own, as tests hold it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.app.service_process import start_command
from tests.patience import PATIENCE_S

__all__ = ["RunningService", "started_services"]


@dataclass(frozen=True)
class RunningService:
    """A service in a process of its own."""

    url: str
    http: httpx.Client
    process: subprocess.Popen[bytes]

    def let_end(self) -> None:
        assert self.process.stdin is not None
        self.http.close()
        self.process.stdin.close()

    def wait_for_end(self) -> None:
        """Assert that it ended well, if no test killed it."""
        with self.process:
            assert self.process.wait(timeout=PATIENCE_S) in {0, -signal.SIGKILL}

    def model(self) -> dict[str, Any]:
        return self.http.get("/api/localllm/status").json()["models"][0]

    def n_output_tokens(self) -> int:
        """Return how many tokens the engine of the default model has written."""
        self.wait_until(lambda model: model["counters"] is not None)
        return int(self.model()["counters"]["n_output_tokens"])

    def wait_until_cut(self, n_before: int, n_whole: int) -> None:
        """Wait until nothing runs, and assert that fewer than `n_whole` tokens came since there were `n_before`."""
        self.wait_until(lambda model: model["n_running"] == 0)
        assert self.n_output_tokens() - n_before < n_whole

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0) -> float:
        """Return how many seconds it took until the default model's status was so."""
        started_s = time.monotonic()
        while not is_so(self.model()):
            assert time.monotonic() - started_s < timeout_s, f"never so: {self.model()}"
            time.sleep(0.01)
        return time.monotonic() - started_s


@contextmanager
def started_services(environment: Mapping[str, str]) -> Iterator[Callable[..., RunningService]]:
    """Start services that end with this block; `outside` are variables that are no settings."""
    running: list[RunningService] = []

    def start(outside: Mapping[str, str] | None = None, **settings: str) -> RunningService:
        own = {f"LOCALLLM_{name.upper()}": value for name, value in settings.items()}
        process = start_command({**environment, **(outside or {}), **own}, "serve", "--owned")
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        key = settings.get("api_key", "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        service = RunningService(
            url, httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_S), process
        )
        running.append(service)
        service.wait_until(lambda model: model["state"] == "ready")
        return service

    yield start
    for service in running:
        service.let_end()
    for service in running:
        service.wait_for_end()
