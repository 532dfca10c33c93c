"""The process that tunes a model: it loads the model under each candidate setting and measures its speeds.

    python -m app.engine.tuning.tuner                             a TuneRequest on stdin
    python -m app.engine.tuning.tuner MODEL.gguf N_THREADS --idle [--processor-time]

Every measurement is stored at once, so the process may be ended at any time. With --idle it makes quick measurements of
the settings that lack one, at the lowest priority, and ends with its stdin; what it measured beside other programs is
dropped, and it exits with DISTURBED. With --processor-time nothing disturbs it, with one thread.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from app.engine.load.machine_file import model_key
from app.engine.load.planner import LoadDevices, requested_run
from app.engine.load.quick_types import copies_to_make, tiles_to_leave_out
from app.engine.load.self_test import run_self_test
from app.engine.load.type_tables import TypeTables, host_key
from app.engine.messages import EngineConfig
from app.engine.model_task import TaskProgress, serve_task
from app.engine.tuning.speed_bench import QUICK, THOROUGH, Clock, SpeedBench, TuningEffort
from app.engine.tuning.tune_results import (
    DEFAULT_WORKLOAD,
    DISTURBED,
    RuntimeSettings,
    SpeedMeasurement,
    TuneFile,
    TuneRequest,
    choose,
    default_setting,
    plain_from_of,
    tune_key,
    with_kv_type,
)
from app.settings.settings import Settings, load_settings
from offload.devices.host import (
    CpuTimes,
    default_threads,
    host_memory,
    is_quiet,
    others_share,
    read_cpu_times,
    usable_processors,
)
from offload.footprint.kv_cache import parse_kv_types, supports_kv_types
from offload.footprint.model import PlannedModel
from offload.speed.type_costs import copy_bytes, types_worth_repacking, weights_by_kind
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.layer_caches import KvShape, kv_shape_of
from quantizer.gguf.validation import tensors_of
from quantizer.system.child_request import exit_with_parent
from quantizer.system.errors import UserError
from quantizer.system.process import lower_priority

if TYPE_CHECKING:
    from app.engine.llama import LlamaModel


_UBATCHES = (128, 256)  # beside the default: smaller ones take less memory, and on some machines no more time
_KV_TYPES = ("q8_0", "q4_0")  # measured to show their cost; users choose them
_CONFIG = EngineConfig(n_ctx=2 * max(THOROUGH.depths))


def first_settings(
    default: RuntimeSettings, *, extra_buffers_are_safe: bool, plain_from: int, repacked_types: tuple[str, ...] = ()
) -> list[RuntimeSettings]:
    """Return the `default` and then every other combination of attention and weight layouts, those that share loaded
    weights one after the other; at last one that repacks only `repacked_types`, where those alone gain by it. All
    combinations of everything would take hours, and most differ in one thing only: `refinements` follow from the best
    of these."""
    layouts = [(False, 0), *([(True, 0), (True, plain_from)] if extra_buffers_are_safe else [])]
    found = [
        replace(default, flash_attention=flash, extra_buffers=repacked, plain_from=n_tokens)
        for repacked, n_tokens in layouts
        for flash in (False, True)
    ]
    found += [replace(default, flash_attention=flash, copies=()) for flash in (False, True)]
    found.sort(key=lambda setting: setting.extra_buffers != default.extra_buffers)
    if extra_buffers_are_safe and repacked_types and not default.flash_attention:  # without a GPU
        found.append(replace(default, extra_buffers=True, plain_from=0, repacked_types=repacked_types))
    return [*dict.fromkeys([default, *found])]


def refinements(best: RuntimeSettings, n_processors: int) -> list[RuntimeSettings]:
    """Return the neighbours of `best`, one thing changed in each; their number depends on its threads only."""
    threads = sorted({max(1, best.n_threads // 2), n_processors} - {best.n_threads})
    return [
        *(replace(best, n_threads=n_threads) for n_threads in threads),
        *(replace(best, n_ubatch=n_ubatch) for n_ubatch in _UBATCHES),
        *(with_kv_type(best, kv_type) for kv_type in _KV_TYPES),
    ]


def _measured(
    header: Header,
    devices: LoadDevices,
    candidates: Iterable[RuntimeSettings],
    effort: TuningEffort,
    known: SpeedMeasurement | None = None,
    clock: Clock = time.perf_counter,
    *,
    tiled_from: Mapping[str, int],
) -> Iterator[SpeedMeasurement]:
    """Yield the speeds of each candidate: of the first alone, unless they are `known`, of the others in turns with it.
    On a GPU there is room for one copy of the weights: a candidate that needs another layout is measured alone, and
    those after it in turns with that."""
    models: dict[tuple[object, ...], LlamaModel] = {}
    reference: tuple[SpeedBench, SpeedMeasurement] | None = None
    with ExitStack() as loaded:
        for setting in candidates:
            layout = setting.extra_buffers, setting.repacked_types
            if layout not in models:
                if devices.has_gpu:
                    loaded.close()
                    models, reference = {}, None
                models[layout] = loaded.enter_context(_model(header, devices, setting, tiled_from))
            model = models[layout]
            if reference is not None:
                with _bench(model, setting, effort, clock) as bench:
                    yield bench.compare(*reference)
                continue
            bench = loaded.enter_context(_bench(model, setting, effort, clock))
            reference = bench, known or bench.measure()
            if known is None:
                yield reference[1]
            known = None


@contextmanager
def _model(
    header: Header, devices: LoadDevices, setting: RuntimeSettings, tiled_from: Mapping[str, int]
) -> Iterator[LlamaModel]:
    from app.engine.llama import LlamaModel

    path, repacks = header.path, setting.extra_buffers
    parameters = devices.parameters(path, _CONFIG, setting)
    types = setting.repacked_types
    loaded = LlamaModel(path, parameters, repacks, on_progress=lambda _fraction: True, repacked_types=types)
    with closing(loaded) as model:
        if repacks:
            model.map_plain_weights(header)
        if setting.copies:
            model.add_copies(dict(setting.copies), _has_room)
        if tiled_from:
            model.leave_out_tiles(tiled_from)
        yield model


def _has_room(n_bytes: int) -> bool:
    return host_memory().free_bytes >= n_bytes


@contextmanager
def _bench(model: LlamaModel, setting: RuntimeSettings, effort: TuningEffort, clock: Clock) -> Iterator[SpeedBench]:
    with (
        closing(model.context(_CONFIG, setting)) as backend,
        closing(SpeedBench(backend, setting, effort, clock)) as bench,
    ):
        yield bench


def _tune(request: TuneRequest) -> Iterator[TaskProgress | SpeedMeasurement]:
    """Yield the speeds of each setting worth measuring, stored at once, and the progress."""
    path, settings = Path(request.path), load_settings()
    header = read_header(path)
    key, shape = tune_key(header), kv_shape_of(header)
    devices, tuned, first, tiled_from = _prepare(header, request.n_threads, settings)
    n_settings = len(first) + len(_possible(refinements(first[0], usable_processors()), shape))
    measured: list[SpeedMeasurement] = []

    def candidates() -> Iterator[RuntimeSettings]:
        yield from first
        tuned.store(key, path.name, measured)
        best = choose(measured, measured[0], DEFAULT_WORKLOAD, is_used=False).setting
        yield from _possible(refinements(best, usable_processors()), shape)

    for index, speeds in enumerate(_measured(header, devices, candidates(), THOROUGH, tiled_from=tiled_from)):
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


def _tune_idle(path: Path, n_threads: int, settings: Settings, *, in_cpu_s: bool = False) -> int:
    """Quickly measure the settings that lack it, if there is memory for a second copy of the model. On GPUs there must
    be room for all layers: with other layers than the loaded copy has there, speeds would differ. Return an exit
    status: DISTURBED where some are still to be measured."""
    header = read_header(path)
    profile = PlannedModel(header, tensors_of(header)).profile(requested_run(_CONFIG, is_fused=False))
    devices, tuned, first, tiled_from = _prepare(header, n_threads, settings)
    key, default = tune_key(header), first[0]
    # The weights in both layouts with their copies, and the two contexts that are measured in turns.
    copied_bytes = copy_bytes(tensors_of(header), dict(default.copies))
    needed_bytes = 2 * (profile.weight_bytes + copied_bytes + profile.cache_bytes + profile.compute_bytes)
    if psutil.virtual_memory().available < needed_bytes:
        return 0
    if devices.has_gpu:
        if not devices.attempt(header, _CONFIG, default).is_all_on_gpus:
            return 0
        # With all layers on GPUs the processor multiplies nothing, so its layouts of the weights do not matter.
        first = [setting for setting in first if setting.weights == default.weights]
    done = {speeds.setting: speeds for speeds in tuned.measured(key)}
    missing = [setting for setting in first if setting not in done]
    if not missing:
        return 0
    candidates = dict.fromkeys([default, *missing])
    clock = time.process_time if in_cpu_s else time.perf_counter
    measured = _measured(header, devices, candidates, QUICK, done.get(default), clock, tiled_from=tiled_from)
    for speeds in measured if in_cpu_s else undisturbed(measured):
        if default in missing and speeds.setting != default:
            break  # what this one was compared with was measured beside other programs
        tuned.add(key, path.name, speeds)
        missing.remove(speeds.setting)
    return DISTURBED if missing else 0


def _prepare(
    header: Header, n_threads: int, settings: Settings
) -> tuple[LoadDevices, TuneFile, list[RuntimeSettings], Mapping[str, int]]:
    """Return the devices, the measurements of this machine, the first settings to compare, the default first, and where
    tiled kernels are left out."""
    cache_dir = settings.cache_dir
    is_safe, plain_from = run_self_test(cache_dir).is_safe, plain_from_of(header)  # before llama.cpp is loaded
    devices, tuned = LoadDevices(replace(_CONFIG, uses_gpu=settings.gpu), cache_dir), TuneFile(cache_dir)
    tuned.drop(model_key(header.path))  # the key of earlier versions, which measured in another way
    default = default_setting(
        n_threads or default_threads(),
        has_gpu=devices.has_gpu,
        extra_buffers_are_safe=is_safe,
        plain_from=plain_from,
        copies=() if devices.has_gpu else copies_to_make(tensors_of(header), cache_dir, n_threads, is_safe=is_safe),
    )
    first = first_settings(
        default,
        extra_buffers_are_safe=is_safe,
        plain_from=plain_from,
        repacked_types=() if devices.has_gpu else _repacked_types(header, cache_dir, default.n_threads),
    )
    in_file = () if devices.has_gpu else tensors_of(header)
    tiled_from = tiles_to_leave_out(in_file, cache_dir, n_threads, is_safe=is_safe)
    return devices, tuned, first, tiled_from


def _repacked_types(header: Header, cache_dir: Path, n_threads: int) -> tuple[str, ...]:
    """Return the types of the model to repack, where the measured types say that some gain by it and others lose."""
    table = TypeTables(cache_dir).read(host_key(n_threads))
    weights = weights_by_kind((tensor, 1.0) for tensor in tensors_of(header) if tensor.name.startswith("blk."))
    return types_worth_repacking(weights, table, DEFAULT_WORKLOAD.n_prefill, DEFAULT_WORKLOAD.n_decode)


def _possible(settings: list[RuntimeSettings], shape: KvShape) -> list[RuntimeSettings]:
    """Return the `settings` whose KV cache type this model supports."""
    return [setting for setting in settings if supports_kv_types(parse_kv_types(setting.kv_type), shape)]


def main() -> int:
    """Tune the model of a request on stdin, or with `--idle` the one of the arguments. Return 1 when that fails."""
    if "--idle" not in sys.argv:
        return serve_task(TuneRequest, _tune)
    lower_priority(os.getpid(), is_lowest=True)
    exit_with_parent()
    try:
        in_cpu_s = "--processor-time" in sys.argv
        return _tune_idle(Path(sys.argv[1]), int(sys.argv[2]), load_settings(), in_cpu_s=in_cpu_s)
    except UserError:
        return 1  # nobody reads the cause here: `localllm tune` reports it


if __name__ == "__main__":
    sys.exit(main())
