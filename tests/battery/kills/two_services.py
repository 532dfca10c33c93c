"""Do two services that share one data folder lose or mix up anything? Both store responses at once, and one is killed.

Run: `uv run python tests/battery/kills/two_services.py MODEL.gguf [--answers 100] [--seed 1]`. Clients of both ask
until so many answers were acknowledged; half-way one service is killed (-9). Every acknowledged answer must then be
there, word for word, for the service that lived and for one that is started afterwards. Exits with 1 where one is not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil

from app.bench.workloads import RandomText
from tests.battery.tally import finish
from tests.bench.served import Served, serve

__all__ = ["Asked", "ask_both", "faults"]

_N_CLIENTS = 3  # of each service
_END_TIMEOUT_S = 30.0


class Asked:
    """The acknowledged answers, by the id of their response; thread-safe."""

    def __init__(self, n_wanted: int) -> None:
        self.texts: dict[str, str] = {}
        self._n_wanted = n_wanted
        self._lock = threading.Lock()
        self.is_half = threading.Event()

    @property
    def is_done(self) -> bool:
        return len(self.texts) >= self._n_wanted

    def add(self, response: Mapping[str, object]) -> None:
        """Record a response that a service has stored."""
        with self._lock:
            self.texts[str(response["id"])] = _text(response)
        if 2 * len(self.texts) >= self._n_wanted:
            self.is_half.set()


def _text(response: Mapping[str, object]) -> str:
    return str(response["output"])


def _ask(served: Served, asked: Asked, seed: int) -> None:
    """Ask `served` until enough was answered, or it is gone."""
    prose = RandomText(seed)
    url = f"http://127.0.0.1:{served.port}/v1/responses"
    with httpx.Client(trust_env=False, timeout=_END_TIMEOUT_S) as http:
        while not asked.is_done:
            body = {"input": prose.words(8), "max_output_tokens": 16, "store": True}
            try:
                answer = http.post(url, json=body)
            except httpx.TransportError:
                return
            asked.add(answer.raise_for_status().json())


def ask_both(one: Served, other: Served, n_answers: int, seed: int) -> Asked:
    """Let clients ask both services, and kill `other` at half of `n_answers`."""
    asked = Asked(n_answers)
    with ThreadPoolExecutor(2 * _N_CLIENTS) as pool:
        places = [(served, _N_CLIENTS * seed + number) for number in range(_N_CLIENTS) for served in (one, other)]
        clients = [pool.submit(_ask, served, asked, chance) for served, chance in places]
        asked.is_half.wait(timeout=_END_TIMEOUT_S * n_answers)
        _kill(other.process)
        for client in clients:
            client.result()
    return asked


def _kill(process: psutil.Process) -> None:
    children = process.children(recursive=True)
    process.kill()
    psutil.wait_procs([process, *children], timeout=_END_TIMEOUT_S)


def faults(served: Served, asked: Asked) -> Iterator[str]:
    """Yield what is wrong with the acknowledged answers as `served` has them."""
    for name, text in asked.texts.items():
        answer = served.http.get(f"/v1/responses/{name}")
        if answer.status_code != httpx.codes.OK:
            yield f"{name} is lost: {answer.text}"
        elif _text(answer.json()) != text:
            yield f"{name} is another answer: {_text(answer.json())} instead of {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        folders = {"data_dir": str(Path(folder, "data")), "cache_dir": str(Path(folder, "cache")), "threads": "1"}
        with serve(options.model, 0, **folders) as one:
            with serve(options.model, 0, **folders) as other:
                asked = ask_both(one, other, options.answers, chance.randrange(1 << 30))
            found = [f"for the service that lived: {fault}" for fault in faults(one, asked)]
        with serve(options.model, 0, **folders) as later:
            found += [f"for a later service: {fault}" for fault in faults(later, asked)]
    for fault in found:
        print(fault)
    finish(len(asked.texts), len(found), options.seed)


if __name__ == "__main__":
    main()
