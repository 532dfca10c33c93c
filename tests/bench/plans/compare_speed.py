"""Whether decode is as fast as predicted, after one calibration run of another model.

Run: `uv run python tests/bench/plans/compare_speed.py CALIBRATION.gguf MODEL.gguf ...`. All models are loaded as in a
worker and answer in turns, so that other load on the machine affects all of them; medians count. The runs of the first
one, at three depths, are recorded like real answers, and the rates fitted to them alone predict the others. Prints a
row for each model and depth, and exits with 1 if one differs by more than 15 %. A native fault ends it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from app.engine.backend import Chunk
from app.engine.load.loading import LoadListener, load_model
from app.engine.load.run_history import RunHistory, RunRecord, SpeedSample, fitted_rates, machine_key
from app.engine.messages import EngineConfig
from app.engine.request import SamplingParams
from offload.devices.bandwidth import measure_read_bandwidth
from offload.devices.host import default_threads
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.speed.cost_model import decode_s, expected_rates
from quantizer.gguf.validation import validate_gguf

__all__: list[str] = []

DEPTHS = (0, 256, 1024)
N_ROUNDS, N_TOKENS = 5, 12
TOLERANCE = 0.15
CONFIG = EngineConfig(n_ctx=2048, n_sequences=1)
_HERE = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0))


class Subject:
    """A loaded model with a state of each depth and its measured speeds."""

    def __init__(self, path: Path, cache_dir: Path) -> None:
        validate_gguf(path)
        self.name = path.name
        self._cache_dir = cache_dir
        self._loaded = load_model(
            path, CONFIG, cache_dir, LoadListener(lambda _fraction: True, print, lambda _plan: None)
        )
        self._backend = self._loaded.backend
        self._sampler = self._backend.new_sampler(SamplingParams(seed=1), ignore_eos=True)
        self._states = {depth: self._state(depth) for depth in DEPTHS if depth}
        self._speeds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}

    def answer(self) -> None:
        """Decode at each depth, and record the speed."""
        for depth, speeds in self._speeds.items():
            self._backend.truncate(0, 0)
            if depth and not self._backend.restore_state(0, self._states[depth]):
                sys.exit(f"{self.name}: the state of {depth} tokens does not fit")
            self._decode(depth, 1)
            begun_s = time.perf_counter()
            for index in range(1, N_TOKENS + 1):
                self._decode(depth + index, 1)
            speeds.append(N_TOKENS / (time.perf_counter() - begun_s))

    def records(self) -> list[RunRecord]:
        """Keep the median at each depth as a run, free the model, and return the runs."""
        for depth, speeds in self._speeds.items():
            middle = depth + N_TOKENS // 2
            self._loaded.record_speed(SpeedSample(median(speeds), middle, middle, None, 0))
        self._sampler.close()
        self._loaded.owned.close()
        return RunHistory(self._cache_dir).records(machine_key(_HERE))[-len(DEPTHS) :]

    def _state(self, depth: int) -> bytes | bytearray:
        for start in range(0, depth, 256):
            self._decode(start, 256)
        state = self._backend.save_state(0)
        self._backend.truncate(0, 0)
        return state

    def _decode(self, position: int, n_tokens: int) -> None:
        tokens = [1 + (position + index) * 7919 % (self._backend.facts.n_vocab - 1) for index in range(n_tokens)]
        self._backend.decode([Chunk(0, position, tokens, 1)])
        self._sampler.sample(n_tokens - 1)


def compared(known: Subject, others: list[Subject], machine: Machine, cache_dir: Path) -> Iterator[float]:
    """Calibrate with the runs of `known`, print how the others compare, and yield their errors."""
    for record in known.records():
        print(f"calibration: {known.name} at {record.depth}: {record.tokens_per_s:.2f} tok/s")
    before, after = expected_rates(machine), fitted_rates(machine, cache_dir)
    print(f"{'model':32} {'before':>6} {'tok/s':>9} {'predicted':>9} {'off':>8} {'expected':>9}")
    for subject in others:
        for depth, record in zip(DEPTHS, subject.records(), strict=True):
            speed, first, then = record.tokens_per_s, *(1 / decode_s(record.work, rates) for rates in (before, after))
            print(f"{subject.name:32} {depth:6} {speed:9.2f} {then:9.2f} {then / speed - 1:+8.1%} {first:9.2f}")
            yield then / speed - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibration", type=Path, help="the model whose runs are recorded")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    options = parser.parse_args()
    bandwidth = measure_read_bandwidth(default_threads())
    print(f"memory is read at {bandwidth.bytes_per_s / 1e9:.1f} GB/s")
    host = Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=bandwidth.bytes_per_s)
    with tempfile.TemporaryDirectory() as folder:
        cache_dir = Path(folder, "known")
        known = Subject(options.calibration, cache_dir)
        others = [Subject(path, Path(folder, "others")) for path in options.models]
        for _ in range(N_ROUNDS):
            for subject in (known, *others):
                subject.answer()
        worst = max(map(abs, compared(known, others, Machine(host), cache_dir)))
    print(f"the worst is off by {worst:.1%}")
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
