"""Tokens a second beside other programs: with every fixed number of threads, and with threads that follow the load.

Run: `uv run python tests/bench/engine/busy_machine.py MODEL.gguf --busy 2`. All numbers take turns in one process, so
that a machine that becomes faster or slower meanwhile does so for all. The first turns are not counted: half a second
passes before the load is known. Exits with 1 where following threads reach less than 0.9 of the best fixed number.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine, Event
from app.engine.loop.threads import ThreadControl
from app.engine.messages import EngineConfig, Finished
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import default_threads
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf

_AIM = 0.9
_NO_DRAFT_PAYS = {1: 1.0, 2: 1e6}
_PROMPT = tuple(range(5, 45))
_N_TOKENS = 128


@contextmanager
def busy(n_programs: int, niceness: int) -> Iterator[None]:
    command = ["nice", "-n", str(niceness), sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(n_programs)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def decode(engine: Engine, events: list[Event], duration_s: float) -> float:
    """Write short answers for so long; return the tokens a second, prompts included."""
    begun_s, n_tokens = time.perf_counter(), 0
    while (now_s := time.perf_counter()) < begun_s + duration_s:
        request_id, left_s = f"{now_s}", begun_s + duration_s - now_s
        greedy = SamplingParams(temperature=0.0)
        engine.submit(
            Request(
                request_id=request_id,
                prompt=_PROMPT,
                sampling=greedy,
                max_tokens=_N_TOKENS,
                ignore_eos=True,
                max_time_s=left_s,
            )
        )
        while not engine.is_idle:
            engine.step()
        n_tokens += sum(event.usage.n_output_tokens for event in events if isinstance(event, Finished))
        events.clear()
    return n_tokens / (time.perf_counter() - begun_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--busy", type=int, default=2, help="programs that compute meanwhile (2)")
    parser.add_argument("--nice", type=int, default=0, help="their niceness (0)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn (4)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each; the median counts (4)")
    options = parser.parse_args()
    validate_gguf(options.model)
    n_most = default_threads()
    model = LlamaModel(options.model, ON_HOST, True, lambda _fraction: True)
    engines: dict[str, tuple[LlamaBackend, Engine, list[Event]]] = {}
    counts = sorted({1, max(1, n_most // 2), n_most})
    for name in (*(f"{n_threads} fixed" for n_threads in counts), "following"):
        n_threads = n_most if name == "following" else int(name.split()[0])
        setting = RuntimeSettings(n_threads, flash_attention=False, extra_buffers=True)
        backend = model.context(EngineConfig(n_ctx=1024, n_sequences=1), setting)
        events: list[Event] = []
        cost = StepCost(dict(_NO_DRAFT_PAYS))
        control = ThreadControl(n_most, backend.set_threads, cost) if name == "following" else None
        engine = Engine(backend, events.append, step_cost=cost, threads=control)
        engines[name] = backend, engine, events
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    with busy(options.busy, options.nice):
        for i in range(options.rounds + 1):
            for name, (_, engine, events) in engines.items():
                if engine._threads is not None:  # what the others computed in this process is no load of its own
                    engine._threads.meter.read()
                    engine._threads._looked_s = time.perf_counter()
                speed = decode(engine, events, options.seconds)
                if i:
                    speeds[name].append(speed)
    for name, found in speeds.items():
        use = engines[name][1].thread_use
        at_last = f", {use.n_threads} at last" if use is not None else ""
        print(f"{name:>10}: {median(found):8.1f} tok/s ({min(found):.1f} to {max(found):.1f}){at_last}")
    for backend, engine, _ in engines.values():
        engine.close()
        backend.close()
    model.close()
    best = max(median(found) for name, found in speeds.items() if name != "following")
    ratio = median(speeds["following"]) / best
    print(f"following threads reach {ratio:.2f} of the best fixed number, beside {options.busy} programs")
    sys.exit(0 if ratio >= _AIM else 1)


if __name__ == "__main__":
    main()
