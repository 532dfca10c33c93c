"""Kills the engine while it loads, reads a prompt, answers or saves prefixes, and looks whether answers stay right.

    uv run python tests/battery/kills/kill_engine.py MODEL.gguf [--kills 40] [--seed 1]

A kill (-9) hits the worker, the service, or the service with all its children, at a random moment of the phase. The
request under way must end: where the service lives, with its answer or an error, not with a closed connection. Nothing
may outlive the service, the next one starts on the same folders, and known prompts, some of which continue others, are
then answered as they are alone (alone.py has the rule). Exits with 1 where one is not. Not on Windows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from rich.table import Table

from app.bench.workloads import RandomText
from tests.battery.clients.soak import Job, known_jobs
from tests.battery.tally import finish
from tests.bench.alone import Match, compare_text
from tests.bench.report import show
from tests.bench.served import Served, serve

__all__ = ["Ending", "ask", "ending_fault"]

_PHASES = ("load", "prefill", "decode", "save")
_VICTIMS = ("worker", "service", "all")
_N_WORDS, _N_TOKENS, _N_CHECKED = 200, 120, 4
_END_S = 60.0  # in which every request and every process must have ended
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended: its text, an error object of the service, or a connection that broke."""

    text: str
    error: str = ""
    is_cut: bool = False


def ask(url: str, prompt: str, n_tokens: int, begun: threading.Event) -> Ending:
    """Stream a greedy answer to its end; `begun` is set at its first text."""
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    text = ""
    try:
        with (
            httpx.Client(base_url=url, trust_env=False, timeout=_END_S) as http,
            http.stream("POST", "/v1/completions", json=body) as response,
        ):
            if response.status_code != httpx.codes.OK:
                return Ending("", response.read().decode())
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return Ending(text, str(event["error"]))
                text += "".join(choice["text"] for choice in event["choices"])
                begun.set()
    except httpx.TransportError:
        return Ending(text, is_cut=True)
    return Ending(text)


def ending_fault(ending: Ending, victim: str) -> str:
    """Return what is wrong with how the request under way ended when `victim` was killed, or nothing."""
    return "its connection broke, and the service lived" if ending.is_cut and victim == "worker" else ""


class Kills:
    """Kills of one service after another over the same folders; each `phase` takes about `lasts_s[phase]`."""

    def __init__(self, model: Path, jobs: Sequence[Job], chance: random.Random) -> None:
        self._model, self._jobs, self._chance = model, jobs, chance
        self._prose = RandomText(chance.randrange(1 << 30))
        self._pool = ThreadPoolExecutor(1)
        self._lasts_s = dict.fromkeys(_PHASES, 1.0)  # the worker saves within a second of idleness
        self.tried: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []

    def run(self, n_kills: int) -> None:
        """Kill `n_kills` times; phases, then victims, go round."""
        rounds = itertools.cycle(itertools.product(_VICTIMS, _PHASES))
        left = list(itertools.islice(rounds, n_kills))
        with tempfile.TemporaryDirectory() as folder:
            names = {name: str(Path(folder, name)) for name in ("data_dir", "cache_dir")}
            while left:
                with serve(self._model, 0, "--ctx", "512", threads="1", idle_tune="false", **names) as served:
                    self._check(served, "after a start")
                    self._time(served)
                    while left and served.process.is_running():
                        victim, phase = left.pop(0)
                        self._kill(served, victim, phase)
            with serve(self._model, 0, "--ctx", "512", threads="1", idle_tune="false", **names) as served:
                self._check(served, "in the end")

    def _time(self, served: Served) -> None:
        """Measure how long the phases take."""
        begun, started_s = threading.Event(), time.monotonic()
        self._unload(served)
        loading = self._pool.submit(ask, str(served.http.base_url), "Hello", 1, threading.Event())
        loading.result()
        self._lasts_s["load"] = time.monotonic() - started_s
        started_s = time.monotonic()
        running = self._pool.submit(ask, str(served.http.base_url), self._prose.words(_N_WORDS), _N_TOKENS, begun)
        begun.wait(_END_S)
        self._lasts_s["prefill"], started_s = time.monotonic() - started_s, time.monotonic()
        running.result()
        self._lasts_s["decode"] = time.monotonic() - started_s

    def _kill(self, served: Served, victim: str, phase: str) -> None:
        begun = threading.Event()
        if phase == "load":
            self._unload(served)
        request = self._pool.submit(ask, str(served.http.base_url), self._prose.words(_N_WORDS), _N_TOKENS, begun)
        if phase == "decode":
            begun.wait(_END_S)
        elif phase == "save":
            request.result()
        time.sleep(self._chance.uniform(0, self._lasts_s[phase]))
        family = [served.process, *served.process.children(recursive=True)]
        killed = self._chosen(family, victim)
        for process in killed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        what = f"{victim} killed at {phase}"
        self.tried[victim, phase] += 1
        if fault := ending_fault(request.result(), victim):
            self.faults.append(f"{what}: {fault}")
        if victim == "worker":
            psutil.wait_procs(killed, timeout=_END_S)  # a request that is sent to one that just died fails with it
            self._check(served, what)
        elif alive := psutil.wait_procs(family, timeout=_END_S)[1]:
            self.faults.append(f"{what}: {alive} outlived the service")

    def _chosen(self, family: Sequence[psutil.Process], victim: str) -> Sequence[psutil.Process]:
        """Return whom to kill; a load may have ended its worker, or not have started one."""
        if victim != "worker":
            return family[:1] if victim == "service" else family
        return [process for process in family[1:] if any("worker" in word for word in _command(process))]

    def _unload(self, served: Served) -> None:
        deadline_s = time.monotonic() + _END_S
        while served.http.post("/api/localllm/unload", json={}).status_code != httpx.codes.OK:  # it is in use
            assert time.monotonic() < deadline_s, "the model stays in use"
            time.sleep(_POLL_S)

    def _check(self, served: Served, what: str) -> None:
        """Let some known prompts be answered."""
        for job in self._chance.sample(self._jobs, _N_CHECKED):
            ending = ask(str(served.http.base_url), job.prompt, len(job.known.tokens), threading.Event())
            if ending.error or ending.is_cut:
                self.faults.append(f"{what}, then a request failed: {ending}")
            elif compare_text(ending.text, job.pieces, job.known)[0] is Match.BEYOND:
                self.faults.append(f"{what}, then {job.prompt[-40:]!r} was answered {ending.text!r}")


def _command(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


def _rows(tried: Counter[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    for victim in _VICTIMS:
        yield victim, *(str(tried[victim, phase]) for phase in _PHASES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kills = Kills(options.model, known_jobs(options.model, options.seed), random.Random(options.seed))
    kills.run(options.kills)
    table = Table("killed at", *_PHASES, box=None, pad_edge=False)
    for row in _rows(kills.tried):
        table.add_row(*row)
    show(table)
    for fault in kills.faults:
        print(fault)
    finish(options.kills, len(kills.faults), options.seed)


if __name__ == "__main__":
    main()
