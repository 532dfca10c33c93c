"""Is anything lost, out of order or held for ever when the clock of the day jumps? By seconds, hours and years.

Run: `uv run python tests/battery/machine/clock_jumps.py MODEL.gguf [--jumps 50] [--seed 1]`. After each jump a service
that runs stores an answer and starts a job, a chat is used, and every answer so far must be there word for word, in the
same order the chats as they were used and the jobs as they were started. One in five times a model that may stay for a
second must leave, and one that may stay for ten minutes must not, whatever the clock says. In the end the clock is
right again and another service must have it all. Exits with 1 where it has not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.chat.conversation import MessageContent
from app.chat.store.chat_store import ChatStore
from tests.battery.machine.jumping_clock import JumpingClock, jumping_clock
from tests.battery.tally import finish
from tests.bench.served import Served, serve

__all__ = ["Kept", "jumps"]

_HOUR_S, _DAY_S, _YEAR_S = 3600.0, 86_400.0, 365 * 86_400.0
_SPANS_S = (2.0, _HOUR_S, 12 * _HOUR_S, 40 * _DAY_S, _YEAR_S, 10 * _YEAR_S)
_N_CHATS = 5
_GONE_WITHIN_S = 20.0
_JOB = {"kind": "tune", "arguments": {"model": "none"}}  # which fails at once


def jumps(n_jumps: int, chance: random.Random) -> Iterator[float]:
    """Yield offsets from the right time; each second one is back at it, or near."""
    for index in range(n_jumps):
        span_s = chance.choice(_SPANS_S)
        yield chance.uniform(-span_s, span_s) if index % 2 == 0 else chance.choice((0.0, -1.0, 0.5))


class Kept:
    """What was acknowledged so far: answers by id, and the ids of chats and jobs as they were used and started."""

    def __init__(self, store: ChatStore) -> None:
        self.texts: dict[str, str] = {}
        self.jobs: list[str] = []
        self._store = store
        self._chats = [store.chats.create(title=str(number)).id for number in range(_N_CHATS)]
        self._n_messages = 0

    def use(self, served: Served, chance: random.Random) -> None:
        """Store an answer, start a job and use a chat."""
        body = {"input": f"Say {len(self.texts)}.", "max_output_tokens": 4, "store": True}
        reply = served.http.post("/v1/responses", json=body).raise_for_status().json()
        self.texts[reply["id"]] = str(reply["output"])
        job = served.http.post("/api/localllm/jobs", json=_JOB)
        self.jobs.append(job.raise_for_status().json()["id"])
        used = chance.choice(self._chats)
        self._store.messages.add(used, None, MessageContent(role="user", content="now?"))
        self._n_messages += 1
        self._chats.remove(used)
        self._chats.append(used)

    def faults(self, served: Served) -> Iterator[str]:
        """Yield what is missing or out of order."""
        for name, text in self.texts.items():
            answer = served.http.get(f"/v1/responses/{name}")
            if answer.status_code != 200 or str(answer.json()["output"]) != text:
                yield f"the response {name} is lost: {answer.text[:200]}"
        listed = [job["id"] for job in served.http.get("/api/localllm/jobs").json()["jobs"]]
        if listed != self.jobs:
            yield f"the jobs are listed as {listed}, not as {self.jobs}"
        chats = [chat.id for chat in self._store.chats.page()][::-1]
        if chats != self._chats:
            yield f"the chats are listed as {chats}, not as {self._chats}"
        n_messages = sum(len(self._store.messages.of(chat)) for chat in chats)
        if n_messages != self._n_messages:
            yield f"of {self._n_messages} messages {n_messages} are there"


def _idle_faults(served: Served, clock: JumpingClock, offset_s: float) -> Iterator[str]:
    """Yield what is wrong with how long a model stays while the clock jumps."""
    _ask(served, "10m")
    clock.jump(offset_s + 10 * _YEAR_S)
    time.sleep(1.5)
    if served.model()["state"] != "ready":
        yield "a model that may stay ten minutes left when the clock was put forward"
    _ask(served, "1s")
    clock.jump(offset_s - 10 * _YEAR_S)
    deadline_s = time.monotonic() + _GONE_WITHIN_S
    while served.model()["state"] == "ready":
        if time.monotonic() > deadline_s:
            yield "a model that may stay a second did not leave when the clock was put back"
            return
        time.sleep(0.1)
    clock.jump(offset_s)


def _ask(served: Served, keep_alive: str) -> None:
    body: dict[str, Any] = {"prompt": "x", "stream": False, "keep_alive": keep_alive, "options": {"num_predict": 1}}
    served.http.post("/api/generate", json=body).raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--jumps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, n_failed = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as name, jumping_clock(Path(name)) as clock:
        folders = {"data_dir": str(Path(name, "data")), "cache_dir": str(Path(name, "cache")), "threads": "1"}
        with ChatStore(Path(name, "data")) as store:
            kept = Kept(store)
            with serve(options.model, 0, **folders) as served:
                for number, offset_s in enumerate(jumps(options.jumps, chance)):
                    clock.jump(offset_s)
                    kept.use(served, chance)
                    found = list(kept.faults(served))
                    if number % 5 == 0:
                        found += _idle_faults(served, clock, offset_s)
                    n_failed += bool(found)
                    for fault in found:
                        print(f"jump {number}, {offset_s:+,.0f} s: {fault}", flush=True)
            clock.jump(0.0)
            with serve(options.model, 0, **folders) as later:
                kept_faults = list(kept.faults(later))
            for fault in kept_faults:
                print(f"for a later service: {fault}")
    finish(options.jumps + 1, n_failed + bool(kept_faults), options.seed)


if __name__ == "__main__":
    main()
