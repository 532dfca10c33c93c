"""Do models make room for each other as they should, with real workers and Ollama's own client?

Run: `uv run python tests/bench/service/models_by_turn.py`. The guide is put under three names into a library of its
own, one of them quantized anew, and a service may take memory for two of them. It is shown who is loaded after each
question, that none leaves while it answers, that two which only fit alone take turns, how long models stay (keep_alive
0, -1, 3s), and that every dialect lists the same ids and names them in its 404. Exits with 1 where anything is
otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ollama

from app.library.local.resolve import resolve
from app.settings.settings import Settings
from quantizer.system.process import python_command

ASKED = "How do I quantize a model?"
IDS = ("guide:4m-q8_0", "other:4m-q8_0", "third:4m-q4_K_M")
LISTS = {"/v1/models": ("data", "id"), "/api/tags": ("models", "name"), "/api/v0/models": ("data", "id")}
NOT_FOUND = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/completion", "/api/v0/completions")
_TIMEOUT_S = 60.0
_CHAT = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 16, "input": ASKED, "prompt": ASKED}


@dataclass(frozen=True, slots=True)
class Service:
    """A service in a process of its own; `failures` are what was otherwise than it should."""

    http: httpx.Client
    ollama: ollama.Client
    failures: list[str]

    def ready(self) -> tuple[str, ...]:
        """Return the ids of the models that are loaded."""
        models = self.http.get("/api/localllm/status").json()["models"]
        return tuple(sorted(model["id"] for model in models if model["state"] == "ready"))

    def ask(self, model: str, n_tokens: int = 8, **fields: Any) -> float:
        """Let one answer come and return how many seconds that took."""
        started_s = time.monotonic()
        self.ollama.chat(model, [{"role": "user", "content": ASKED}], options={"num_predict": n_tokens}, **fields)
        return time.monotonic() - started_s

    def check(self, what: str, found: object, wanted: object) -> None:
        """Print what was found, and keep it where that was not wanted."""
        is_so = found == wanted
        print(f"{'ok  ' if is_so else 'WRONG'} {what}: {found}" + ("" if is_so else f", wanted {wanted}"), flush=True)
        if not is_so:
            self.failures.append(what)

    def wait(self, is_so: Callable[[], bool], timeout_s: float = 15.0) -> float:
        """Return how many seconds it took until it was so, or the time that it was waited for."""
        started_s = time.monotonic()
        while not is_so() and time.monotonic() - started_s < timeout_s:
            time.sleep(0.05)
        return time.monotonic() - started_s


def _library(data_dir: Path, environment: dict[str, str]) -> None:
    guide = resolve("guide", Settings()).path
    for name in ("Guide-4M-Q8_0", "Other-4M-Q8_0"):
        folder = data_dir / "models" / "made" / name
        folder.mkdir(parents=True)
        shutil.copy(guide, folder / f"{name}.gguf")
    third = data_dir / "models" / "made" / "Third-4M" / "Third-4M-Q4_K_M.gguf"
    third.parent.mkdir()
    command = python_command("app.cli.main", "quantize", str(guide), "Q4_K_M", "-o", str(third))
    subprocess.run(command, env=environment, check=True, capture_output=True)


@contextmanager
def _service(environment: dict[str, str], failures: list[str], **settings: str) -> Iterator[Service]:
    own = {f"LOCALLLM_{name.upper()}": value for name, value in settings.items()}
    command = python_command("app.cli.main", "serve", "--owned")
    with subprocess.Popen(
        command, env={**environment, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = json.loads(process.stdout.readline())["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=_TIMEOUT_S) as http:
            service = Service(http, ollama.Client(url, timeout=_TIMEOUT_S, trust_env=False), failures)
            service.wait(lambda: bool(service.ready()), _TIMEOUT_S)
            yield service
        process.stdin.close()


def _planned_bytes(environment: dict[str, str], failures: list[str]) -> int:
    """Return what a model was planned to take, by its worker."""
    with _service(environment, failures, model=IDS[0]) as service:
        (model,) = service.http.get("/api/localllm/status").json()["models"]
        (device,) = model["plan"]["devices"]
        return sum(device[part] for part in ("weights_bytes", "kv_bytes", "compute_bytes"))


def _by_turn(service: Service) -> None:
    a, b, c = IDS
    for asked, left in ((a, (a,)), (b, (a, b)), (c, (b, c)), (a, (a, c)), (c, (a, c)), (b, (b, c))):
        took_s = service.ask(asked)
        service.check(f"after a question to {asked} ({took_s:.2f} s)", service.ready(), tuple(sorted(left)))


def _none_while_it_answers(service: Service) -> None:
    a, b, c = IDS
    with ThreadPoolExecutor() as threads:
        streams = [
            service.ollama.chat(name, [{"role": "user", "content": ASKED}], stream=True, options={"num_predict": 1500})
            for name in (b, c)
        ]
        for stream in streams:
            next(stream)
        waiting = threads.submit(service.ask, a)
        ends = []
        for stream in streams:
            *_, last = stream
            ends.append((last.done, last.done_reason in ("stop", "length")))
        service.check("both answers came to their end while a third model was asked for", ends, [(True, True)] * 2)
        took_s = waiting.result(_TIMEOUT_S)
        service.check(f"and then it answered ({took_s:.2f} s)", a in service.ready(), True)


def _turns(service: Service) -> None:
    """Ask two models that only fit alone, by four clients at once."""
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(service.ask, IDS[number % 2]) for number in range(8)]
        took_s = sorted(answer.result(_TIMEOUT_S) for answer in asked)
    service.check(
        f"eight questions to two models were answered ({took_s[0]:.2f} to {took_s[-1]:.2f} s)", len(took_s), 8
    )
    service.check("one of them is loaded", len(service.ready()), 1)


def _stays(service: Service) -> None:
    name = IDS[1]

    def expires_s() -> float | None:
        running = [model for model in service.ollama.ps().models if model.model == name]
        return running[0].expires_at.timestamp() - time.time() if running and running[0].expires_at else None

    service.ask(name)
    service.check("without a word it stays for ten minutes", round((expires_s() or 0) / 60), 10)
    service.ask(name, keep_alive=-1)
    service.check("-1 keeps it", (expires_s() or 0) > 1e9, True)
    service.ask(name, keep_alive="3s")
    took_s = service.wait(lambda: name not in service.ready())
    service.check(f"3s lets it go ({took_s:.1f} s after the answer)", 2.5 < took_s < 6.0, True)
    service.ask(name, keep_alive=0)
    took_s = service.wait(lambda: name not in service.ready())
    service.check(f"0 lets it go at once ({took_s:.2f} s)", took_s < 1.0, True)


def _names(service: Service) -> None:
    for path, (items, field) in LISTS.items():
        listed = {entry[field] for entry in service.http.get(path).json()[items]}
        service.check(f"ids of {path}", listed >= {*IDS, "guide"}, True)
    for path in NOT_FOUND:
        answer = service.http.post(path, json={"model": "nobody:7b", **_CHAT})
        service.check(f"404 of {path} lists them", (answer.status_code, IDS[0] in answer.text), (404, True))
        print("     ", answer.text[:150])


def main() -> int:
    """Show it all and return the exit status."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")} | {
            "LOCALLLM_DATA_DIR": str(root / "data"),
            "LOCALLLM_CACHE_DIR": str(root / "cache"),
            "LOCALLLM_CONFIG": str(root / "config.toml"),
            "LOCALLLM_PORT": "0",
            "LOCALLLM_IDLE_TUNE": "false",
        }
        _library(root / "data", environment)
        n_bytes = _planned_bytes(environment, failures)
        print(f"each takes {n_bytes >> 20} MiB")
        two, one = f"{n_bytes * 2.5:.0f}", f"{n_bytes * 1.5:.0f}"
        with _service(environment, failures, model=IDS[0], max_memory=two) as service:
            _by_turn(service)
            _none_while_it_answers(service)
            _stays(service)
            _names(service)
        with _service(environment, failures, model=IDS[0], max_memory=one) as service:
            _turns(service)
    print(f"{len(failures)} of all were wrong")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
