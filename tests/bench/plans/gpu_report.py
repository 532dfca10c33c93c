"""What a machine with a GPU shows for a model: bytes by device, speeds predicted and measured, and llama-bench's.

Run: `uv run python tests/bench/plans/gpu_report.py MODEL.gguf [--llama-bench PATH] [--steps N] [--rounds N] [--out
REPORT.md]`. Loads the model with no layer, all layers and numbers between on the fastest GPU, each in a process of its
own, and writes one Markdown file: the devices with their measured speeds, then a row for each load. Exits with 1 where
a GPU holds other bytes than planned by more than 3 %. Without rounds nothing is timed: a driver for processors, such as
llvmpipe, needs minutes for an answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from app.engine.backend import Backend, Chunk
from app.engine.load.loading import LoadListener, load_model
from app.engine.load.machine import detect_machine, list_gpus
from app.engine.load.planner import LoadAttempt, LoadDevices
from app.engine.messages import EngineConfig
from app.protocol.plan import Plan
from offload.devices.machine import Machine
from offload.format import format_memory
from offload.placement.load_parameters import DeviceUsage
from quantizer.gguf.header import read_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.system.process import python_command

N_PROMPT, N_ANSWER = 512, 32
N_CTX = 2048
TOLERANCE, ROUNDED_BYTES = 0.03, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load: `planned_bytes` and `held_bytes` by GPU, rates in tokens a second, None where unknown.

    The processor's bytes are not compared: of a mapped file llama.cpp logs the whole, wherever its layers went.
    """

    n_layers: int
    planned_bytes: Mapping[str, int]
    held_bytes: Mapping[str, int]
    predicted_decode_tps: float | None
    predicted_prefill_tps: float | None
    decode_tps: float | None
    prefill_tps: float | None

    @property
    def is_as_planned(self) -> bool:
        """Whether every GPU holds what was planned."""
        return all(
            abs(self.held_bytes.get(name, 0) - n_bytes) <= TOLERANCE * n_bytes + ROUNDED_BYTES
            for name, n_bytes in self.planned_bytes.items()
        )


def measure(path: Path, gpu: str, n_layers: int, n_rounds: int, cache_dir: Path) -> Load:
    """Load the model with `n_layers` on `gpu` and time a prompt and an answer, `n_rounds` times; medians count."""
    plans, usages = list[Plan](), list[Mapping[str, DeviceUsage]]()
    check_load = LoadDevices.check_load

    def watched(self: LoadDevices, attempt: LoadAttempt, usage: Mapping[str, DeviceUsage], key: str) -> tuple[str, ...]:
        usages.append(usage)
        return check_load(self, attempt, usage, key)

    LoadDevices.check_load = watched  # type: ignore[method-assign]
    config = EngineConfig(n_ctx=N_CTX, n_cells=N_CTX, n_sequences=1, gpu_layers={gpu: n_layers})
    listener = LoadListener(lambda _fraction: True, lambda sentence: print(sentence, file=sys.stderr), plans.append)
    loaded = load_model(path, config, cache_dir, listener)
    plan, usage = plans[-1], usages[-1]
    with loaded.owned:
        backend = loaded.backend
        prefill_tps = _tps(N_PROMPT, [seconds(backend, lambda: _prefill(backend)) for _ in range(n_rounds)])
        decode_tps = _tps(N_ANSWER, [seconds(backend, lambda: _answer(backend)) for _ in range(n_rounds)])
    gpus = [device for device in plan.devices if device.is_gpu]
    return Load(
        n_layers=n_layers,
        planned_bytes={device.name: device.n_bytes - device.extras_bytes for device in gpus},
        held_bytes={device.name: usage[device.name].n_bytes for device in gpus},
        predicted_decode_tps=plan.decode_tps,
        predicted_prefill_tps=plan.prefill_tps,
        decode_tps=decode_tps,
        prefill_tps=prefill_tps,
    )


def _tps(n_tokens: int, times_s: list[float]) -> float | None:
    return n_tokens / median(times_s) if times_s else None


def seconds(backend: Backend, run: Callable[[], None]) -> float:
    """Return how long `run` takes behind an empty cache."""
    backend.truncate(0, 0)
    backend.decode([Chunk(0, 0, (1,), 1)])
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s


def _prefill(backend: Backend) -> None:
    step = 256
    for start in range(1, N_PROMPT + 1, step):
        _decode(backend, start, step)


def _answer(backend: Backend) -> None:
    for index in range(N_ANSWER):
        _decode(backend, 1 + index, 1)


def _decode(backend: Backend, position: int, n_tokens: int) -> None:
    n_vocab = backend.facts.n_vocab
    tokens = [1 + (position + index) * 7919 % (n_vocab - 1) for index in range(n_tokens)]
    backend.decode([Chunk(0, position, tokens, 1)])
    backend.logits(n_tokens - 1)  # waits for the devices


def peer_rates(program: Path, path: Path, n_layers: int, n_rounds: int) -> tuple[float, float]:
    """Return llama-bench's tokens a second of an answer and of a prompt with so many layers on the GPU."""
    command = [program, "-m", path, "-ngl", n_layers, "-p", N_PROMPT, "-n", N_ANSWER, "-r", n_rounds, "-o", "json"]
    run = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
    rates = {row["n_gen"] > 0: row["avg_ts"] for row in json.loads(run.stdout)}
    return rates[True], rates[False]


def report(path: Path, machine: Machine, loads: list[Load], peer: Mapping[int, tuple[float, float]]) -> Iterator[str]:
    """Yield the lines of the report, as Markdown."""
    yield f"# {path.name} on {', '.join(gpu.description or gpu.name for gpu in machine.gpus)}\n"
    yield "| device | free | reads, GB/s | multiplies, G operations/s |\n|---|---|---|---|"
    for device in (machine.host, *machine.gpus):
        operations = f"{device.speed.operations_per_s / 1e9:,.0f}" if device.speed else ""
        reads = f"{device.bytes_per_s / 1e9:,.1f}" if device.bytes_per_s else "unknown"
        yield f"| {device.name} {device.description} | {format_memory(device.free_bytes)} | {reads} | {operations} |"
    speeds = " | ".join(f"{what}: predicted | measured | llama-bench" for what in ("answer", "prompt"))
    yield f"\n| layers | planned | held | {speeds} |"
    yield "|---" * 9 + "|"
    for load in loads:
        theirs = [f"{rate:,.1f}" for rate in peer.get(load.n_layers, ())] or ["", ""]
        sizes = [
            ", ".join(f"{name} {format_memory(n_bytes)}" for name, n_bytes in by_device.items())
            for by_device in (load.planned_bytes, load.held_bytes)
        ]
        answer = (_rate(load.predicted_decode_tps), _rate(load.decode_tps), theirs[0])
        prompt = (_rate(load.predicted_prefill_tps), _rate(load.prefill_tps), theirs[1])
        yield f"| {load.n_layers} | " + " | ".join((*sizes, *answer, *prompt)) + " |"
    n_good = sum(load.is_as_planned for load in loads)
    yield f"\n{n_good} of {len(loads)} loads hold what was planned within {TOLERANCE:.0%}. Rates are tokens a second."


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.1f}"


def _in_child(path: Path, gpu: str, n_layers: int, n_rounds: int, cache_dir: Path) -> Load:
    """Measure in a process of its own, since native code may end it."""
    load = ("--rounds", str(n_rounds), "--load", gpu, str(n_layers), str(cache_dir))
    command = python_command("tests.bench.plans.gpu_report", str(path), *load)
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Load(**json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--llama-bench", type=Path, metavar="PATH", help="built for the same GPU, to compare with")
    parser.add_argument("--steps", type=int, default=4, help="numbers of layers beside none (4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is timed; 0: only bytes (3)")
    parser.add_argument("--out", type=Path, metavar="REPORT.md", help="also write the report there")
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        gpu, n_layers, folder = options.load
        print(json.dumps(asdict(measure(options.model, gpu, int(n_layers), options.rounds, Path(folder)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        machine = detect_machine(list_gpus((), Path(folder)), Path(folder))
        if not machine.gpus:
            sys.exit("this build of llama.cpp lists no GPU")
        gpu = max(machine.gpus, key=lambda device: device.bytes_per_s or 0.0)
        n_all = hyperparameter(read_header(options.model), "block_count") + 1
        counts = sorted({n_all * step // options.steps for step in range(options.steps + 1)})
        loads = [_in_child(options.model, gpu.name, count, options.rounds, Path(folder)) for count in counts]
    peer = {}
    if options.llama_bench and options.rounds:
        peer = {count: peer_rates(options.llama_bench, options.model, count, options.rounds) for count in counts}
    text = "\n".join(report(options.model, machine, loads, peer)) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    sys.exit(not all(load.is_as_planned for load in loads))


if __name__ == "__main__":
    main()
