"""A service in a process of its own, as tests hold it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["RunningService"]


@dataclass(frozen=True)
class RunningService:
    """A service in a process of its own."""

    url: str
    http: httpx.Client
    process: subprocess.Popen[bytes]

    def model(self) -> dict[str, Any]:
        return self.http.get("/api/localllm/status").json()["models"][0]

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool], timeout_s: float = 10.0) -> float:
        """Return how many seconds it took until the default model's status was so."""
        started_s = time.monotonic()
        while not is_so(self.model()):
            assert time.monotonic() - started_s < timeout_s, f"never so: {self.model()}"
            time.sleep(0.01)
        return time.monotonic() - started_s
