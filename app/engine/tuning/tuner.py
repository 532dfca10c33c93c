"""The process that tunes a model: it loads the model under each candidate setting and measures its speeds.

    python -m app.engine.tuning.tuner                             a TuneRequest on stdin
    python -m app.engine.tuning.tuner MODEL.gguf N_THREADS --idle

Owns the candidates and how a speed is measured. With a request on stdin it yields the speeds of each setting. Every
measurement is stored at once, so the process may be ended at any time. With --idle it makes quick measurements of the
settings that lack one, at the lowest priority, and ends with its stdin; what it measured beside other programs is not
kept, and it exits with DISTURBED. Independent of how results are shown.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path

import psutil

from app.engine.backend import Backend, Chunk
from app.engine.load.machine_file import model_key
from app.engine.load.planner import LoadDevices
from app.engine.load.self_test import run_self_test
from app.engine.model_task import TaskProgress, serve_task
from app.engine.protocol.messages import EngineConfig
from app.engine.request import SamplingParams
from app.engine.tuning.tune_results import (
    DEFAULT_WORKLOAD,
    DISTURBED,
    RuntimeSettings,
    SpeedMeasurement,
    TuneFile,
    TuneRequest,
    fastest,
    plain_from_of,
    tune_key,
    with_kv_type,
)
from app.settings.settings import load_settings
from offload.devices.cpu import default_threads, usable_processors
from offload.devices.cpu_load import CpuTimes, is_quiet, others_share, read_cpu_times
from offload.footprint.kv_cache import parse_kv_types, supports_kv_types
from quantizer.child_request import exit_with_parent
from quantizer.errors import UserError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.layer_caches import KvShape, kv_shape_of

__all__ = ["QUICK", "THOROUGH", "TuningEffort", "first_settings", "main", "measure", "refinements", "undisturbed"]

_UBATCHES = (128, 256)  # beside the default: smaller ones take less memory, and on some machines no more time
_KV_TYPES = ("q8_0", "q4_0")  # measured to show their cost; users choose them
_RATIO_DEPTH = 512  # where the costs of steps are compared, if it is one of the depths
_SEED_TOKENS = 64  # one sequence of at least these, restored again and again, fills the cache
_IDLE_NICE = 19
_SPARE_SHARE = 3  # memory for weights twice, once repacked, and for all else

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How much is measured under each setting: runs of each step, tokens of prefill, depths and step sizes."""

    n_repeats: int
    n_prefill: int
    depths: tuple[int, ...]
    step_sizes: tuple[int, ...]


THOROUGH = TuningEffort(n_repeats=3, n_prefill=512, depths=(0, 512, 1792), step_sizes=(2, 4, 8, 15, 16, 17, 31, 32))
QUICK = TuningEffort(n_repeats=2, n_prefill=96, depths=(0, 512, 1792), step_sizes=(4, 16))  # 5 s a setting: 1B, 2 cores
_CONFIG = EngineConfig(n_ctx=2 * max(THOROUGH.depths))


def first_settings(n_threads: int, *, extra_buffers_are_safe: bool, plain_from: int = 0) -> list[RuntimeSettings]:
    """Return every combination of attention and weight layouts, those that share loaded weights one after the other.

    All combinations of everything would take hours, and most differ in one thing only: `refinements` follow from the
    best of these.
    """
    layouts = [(False, 0), *([(True, 0)] if extra_buffers_are_safe else [])]
    if extra_buffers_are_safe and plain_from:
        layouts.append((True, plain_from))
    return [
        RuntimeSettings(n_threads, flash, repacked, plain_from=plain_from)
        for repacked, plain_from in layouts
        for flash in (False, True)
    ]


def refinements(best: RuntimeSettings, n_processors: int) -> list[RuntimeSettings]:
    """Return the neighbours of `best`, one thing changed in each; their number depends on its threads only."""
    threads = sorted({max(1, best.n_threads // 2), n_processors} - {best.n_threads})
    return [
        *(replace(best, n_threads=n_threads) for n_threads in threads),
        *(replace(best, n_ubatch=n_ubatch) for n_ubatch in _UBATCHES),
        *(with_kv_type(best, kv_type) for kv_type in _KV_TYPES),
    ]


def measure(
    backend: Backend, setting: RuntimeSettings, effort: TuningEffort = THOROUGH, clock: Clock = time.perf_counter
) -> SpeedMeasurement:
    """Return the speeds of `backend`, which was made with `setting` and is empty. Its cache is filled afterwards."""
    bench = _Bench(backend, effort, clock)
    prefill = bench.prefill()
    decode = []
    ratios: list[tuple[int, float]] = [(1, 1.0)]
    for depth in effort.depths:
        if bench.fill(depth):
            single_s = bench.step_s(1)
            decode.append((depth, 1 / single_s))
            if depth == _RATIO_DEPTH:
                ratios += [(n_tokens, bench.step_s(n_tokens) / single_s) for n_tokens in effort.step_sizes]
    bench.close()
    return SpeedMeasurement(setting, prefill, tuple(decode), tuple(ratios))


class _Bench:
    """A backend under test. Sequence 0 is measured, the others only add depth.

    A model with states cannot drop what a step computed. There the steps of one size follow each other, as in an answer
    whose drafts are accepted, and are held only where an answer would be. States that are held move on through memory
    that the system provides once: with 52 MB of a Mamba-2 370M such a step of 4 tokens took four times as long.
    """

    def __init__(self, backend: Backend, effort: TuningEffort, clock: Clock) -> None:
        self._backend = backend
        self._effort = effort
        self._clock = clock
        self._sampler = backend.new_sampler(SamplingParams(temperature=0.0), ignore_eos=False)
        self._tokens = [1 + index % max(1, backend.facts.n_vocab - 1) for index in range(backend.facts.n_batch)]
        self._n_max = min(len(self._tokens), backend.facts.n_ctx - 1)  # tokens of a batch
        n_each = -(-max(effort.depths) // max(1, backend.facts.n_seq_max - 1))
        self._n_seed = min(max(_SEED_TOKENS, n_each), self._n_max)
        self._n_filled = 0
        self._n_computed = 0  # tokens of sequence 0
        self._next_id = 1
        self._has_held = False
        self._compute(self._n_seed)  # this batch also reads the weights from disk, before any measurement
        self._seed = backend.save_state(0)
        self._clear()

    def prefill(self) -> float:
        """Return tokens a second of whole batches from an empty cache. Sequence 0 is empty again afterwards."""
        n_tokens = min(self._n_max, self._effort.n_prefill)
        return n_tokens / self._median_s(lambda: self._compute(n_tokens), self._clear)

    def fill(self, depth: int) -> bool:
        """Let sequence 0 attend to at least `depth` cells. Return False when there are not that many.

        Copies of a short state, overlaid on it, cost the next step as much as a longer sequence, without computing one.
        That they are in the same stream is not enough: fused attention skips the cells of other sequences.
        """
        facts = self._backend.facts
        n_steps = 1 if facts.supports_truncation else 1 + facts.truncation.n_holds + self._effort.n_repeats
        if depth + self._n_seed + n_steps * max(self._effort.step_sizes) > facts.n_cells:
            return False
        while self._n_filled < depth and self._next_id < facts.n_seq_max:
            if not self._backend.restore_state(self._next_id, self._seed):
                return False
            self._next_id += 1
            self._n_filled += self._n_seed
        return self._begin() and self._n_filled >= depth

    def step_s(self, n_tokens: int) -> float:
        """Return the seconds of a step of `n_tokens` after the tokens of sequence 0, all with logits."""
        if self._backend.facts.supports_truncation:
            return self._median_s(lambda: self._step(n_tokens), self._remove_step)
        self._begin()
        self._step(n_tokens)  # moves the state to memory of its own, as the first step of an answer does
        if self._is_held(n_tokens) and not self._has_held:
            self._has_held = True
            for _ in range(self._backend.facts.truncation.n_holds):
                self._step(n_tokens)
        return self._median_s(lambda: self._step(n_tokens), lambda: None)

    def close(self) -> None:
        self._sampler.close()

    def _median_s(self, run: Callable[[], None], after: Callable[[], None]) -> float:
        """Return the median time of `run`, without what is done `after` each."""
        times = []
        for _ in range(self._effort.n_repeats):
            started = self._clock()
            run()
            times.append(self._clock() - started)
            after()
        return statistics.median(times)

    def _begin(self) -> bool:
        """Let sequence 0 be the seed alone, which attends to all others. Return False without room for it."""
        self._clear()
        if not self._backend.restore_state(0, self._seed):
            return False
        self._n_computed = self._n_seed
        for other_id in range(1, self._next_id):
            self._backend.overlay(other_id, 0)
        return True

    def _is_held(self, n_tokens: int) -> bool:
        return n_tokens - 1 > self._backend.facts.truncation.n_rejected_freely([n_tokens])

    def _step(self, n_tokens: int) -> None:
        if self._is_held(n_tokens):
            self._backend.hold(0)  # part of the step of an answer too
        self._compute(n_tokens, n_logits=n_tokens)

    def _compute(self, n_tokens: int, n_logits: int = 1) -> None:
        self._backend.decode([Chunk(0, self._n_computed, self._tokens[:n_tokens], n_logits)])
        self._sampler.sample(n_tokens - 1)  # a GPU has finished when its logits can be read
        self._n_computed += n_tokens

    def _remove_step(self) -> None:
        self._n_computed = self._backend.truncate(0, self._n_seed)

    def _clear(self) -> None:
        self._n_computed = self._backend.truncate(0, 0)


def _measured(path: Path, candidates: Iterable[RuntimeSettings], effort: TuningEffort) -> Iterator[SpeedMeasurement]:
    """Yield the speeds of each candidate; neighbours with or without repacking share a loaded model."""
    from app.engine.llama import LlamaModel

    settings = load_settings()
    devices = LoadDevices(replace(_CONFIG, uses_gpu=settings.gpu), settings.cache_dir)
    for extra_buffers, group in groupby(candidates, key=lambda setting: setting.extra_buffers):
        first = next(group)
        parameters = devices.parameters(path, _CONFIG, first)
        with closing(LlamaModel(path, parameters, extra_buffers, on_progress=lambda _fraction: True)) as model:
            if extra_buffers:
                model.map_plain_weights(read_header(path))
            for setting in chain([first], group):
                with closing(model.context(_CONFIG, setting)) as backend:
                    yield measure(backend, setting, effort)


def _tune(request: TuneRequest) -> Iterator[TaskProgress | SpeedMeasurement]:
    """Yield the speeds of each setting worth measuring, stored at once, and the progress."""
    path, cache_dir = Path(request.path), load_settings().cache_dir
    header = read_header(path)
    tuned, key, shape = _tune_file(header, cache_dir), tune_key(header), kv_shape_of(header)
    first = _first(path, request.n_threads, cache_dir)
    n_settings = len(first) + len(_possible(refinements(first[0], usable_processors()), shape))
    measured: list[SpeedMeasurement] = []

    def candidates() -> Iterator[RuntimeSettings]:
        yield from first
        tuned.store(key, path.name, measured)
        best = fastest(measured, DEFAULT_WORKLOAD).setting
        yield from _possible(refinements(best, usable_processors()), shape)

    for index, speeds in enumerate(_measured(path, candidates(), THOROUGH)):
        measured.append(speeds)
        if index >= len(first):
            tuned.add(key, path.name, speeds)
        yield speeds
        yield TaskProgress(index, n_settings)


def undisturbed(
    measured: Iterable[SpeedMeasurement], read_times: Callable[[], CpuTimes] = read_cpu_times
) -> Iterator[SpeedMeasurement]:
    """Yield what is `measured` while other programs take little of the processors: beside them any setting may win."""
    before = read_times()
    for speeds in measured:
        after = read_times()
        if is_quiet(others_share(before, after)):
            yield speeds
        before = read_times()


def _tune_idle(path: Path, n_threads: int, cache_dir: Path) -> int:
    """Measure settings without a measurement quickly, if there is memory for a second copy of the model.

    Return an exit status: DISTURBED where some are still to be measured.
    """
    if psutil.virtual_memory().available < _SPARE_SHARE * path.stat().st_size:
        return 0
    header = read_header(path)
    tuned, key = _tune_file(header, cache_dir), tune_key(header)
    done = {speeds.setting for speeds in tuned.measured(key)}
    missing = [setting for setting in _first(path, n_threads, cache_dir) if setting not in done]
    for speeds in undisturbed(_measured(path, tuple(missing), QUICK)):
        tuned.add(key, path.name, speeds)
        missing.remove(speeds.setting)
    return DISTURBED if missing else 0


def _tune_file(header: Header, cache_dir: Path) -> TuneFile:
    """Return the measurements of this machine, without those of this model whose steps were timed otherwise."""
    tuned, earlier = TuneFile(cache_dir), model_key(header.path)
    if earlier != tune_key(header):
        tuned.drop(earlier)
    return tuned


def _first(path: Path, n_threads: int, cache_dir: Path) -> list[RuntimeSettings]:
    is_safe = run_self_test(cache_dir).is_safe
    plain_from = plain_from_of(read_header(path))
    return first_settings(n_threads or default_threads(), extra_buffers_are_safe=is_safe, plain_from=plain_from)


def _possible(settings: list[RuntimeSettings], shape: KvShape) -> list[RuntimeSettings]:
    """Return the `settings` whose KV cache type this model supports."""
    return [setting for setting in settings if supports_kv_types(parse_kv_types(setting.kv_type), shape)]


def main() -> int:
    """Tune the model of a request on stdin, or with `--idle` the one of the arguments. Return 1 when that fails."""
    if "--idle" not in sys.argv:
        return serve_task(TuneRequest, _tune)
    if sys.platform == "win32":
        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        psutil.Process().nice(_IDLE_NICE)
    exit_with_parent()
    try:
        return _tune_idle(Path(sys.argv[1]), int(sys.argv[2]), load_settings().cache_dir)
    except UserError:
        return 1  # nobody reads the cause here: `localllm tune` reports it


if __name__ == "__main__":
    sys.exit(main())
