"""Which types of one model read faster as a copy, and where tiled kernels pay, measured as it is loaded for the first
time, in half a second.

Before the table of types is there (`app.engine.tuning.type_tuner`, in an idle moment), a fresh installation would read
the first prompts of a slow type at half the possible speed or less.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path

from app.engine.load.type_tables import TypeTables, prompt_table, quick_key
from app.engine.tuning.tune_results import copies_of
from offload.speed.type_costs import (
    COPY_KINDS,
    TILED_FROM,
    TILED_TYPES,
    UNQUANTIZED,
    is_copied,
    kind_of,
)
from quantizer.gguf.header import TensorInfo
from quantizer.gguf.tensor_types import TENSOR_TYPES, WEIGHT_TYPES

_NOTABLE_SHARE = 0.1  # of the weights: copying fewer gains little
_NOTABLE_WEIGHTS = 32_000_000  # the prompts of smaller models take no time in any type


def copies_to_make(
    tensors: Collection[TensorInfo], cache_dir: Path, n_threads: int, *, is_safe: bool
) -> tuple[tuple[str, str], ...]:
    """Return the copies by which prompts of a model with `tensors` gain on this processor, once what was not measured
    of its types is. Whoever loads a model and whoever tunes it asks here: what was measured with other copies than a
    load's counts for nothing. Raises EngineError."""
    measure_prompts(tensors, cache_dir, n_threads, is_safe=is_safe)
    return copies_of(tensors, cache_dir, n_threads, is_repacked=is_safe)


def measure_prompts(tensors: Iterable[TensorInfo], cache_dir: Path, n_threads: int, *, is_safe: bool) -> None:
    """Measure the types of the matrices that prompts multiply with, and the kinds that copies may have, those that were
    not measured; `is_safe` is whether this build can run repacked weights. By the time of one thread, which other
    programs do not change; what types gain over each other is much the same with more. Raises EngineError."""
    any_kind = {entry.name: entry.name for entry in WEIGHT_TYPES.values() if entry.name not in UNQUANTIZED}
    n_weights: dict[str, int] = {}
    for tensor in tensors:
        if is_copied(tensor, any_kind):
            name = TENSOR_TYPES[tensor.type_id].name
            n_weights[name] = n_weights.get(name, 0) + tensor.n_elements
    names = [name for name, count in n_weights.items() if count >= _NOTABLE_SHARE * sum(n_weights.values())]
    if sum(n_weights.values()) < _NOTABLE_WEIGHTS:
        return
    known = prompt_table(cache_dir, n_threads).types.keys()
    missing = {name for name in names if name not in known}
    if known >= {*names, *COPY_KINDS}:
        return
    from app.engine.llama.type_speeds import TypeBench  # native

    tables = TypeTables(cache_dir)
    with closing(TypeBench(1, repacks=is_safe, clock=time.process_time)) as bench:
        repacked = [kind_of(name, is_repacked=True) for name in sorted(missing)] if is_safe else []
        for kind in (*repacked, *sorted(missing), *(kind for kind in COPY_KINDS if kind not in known)):
            if cost := bench.quick_cost(kind):
                tables.add(quick_key(), kind, cost)


def tiles_to_leave_out(
    tensors: Iterable[TensorInfo], cache_dir: Path, n_threads: int, *, is_safe: bool
) -> Mapping[str, int]:
    """Return below how many rows ggml's tiled kernels are slower than its others, by the names of types of `tensors`
    that are not repacked, once what was not measured of them is. Raises EngineError."""
    n_weights: dict[str, int] = {}
    for tensor in tensors:
        name = TENSOR_TYPES[tensor.type_id].name
        if name in TILED_TYPES and len(tensor.shape) == 2:
            n_weights[name] = n_weights.get(name, 0) + tensor.n_elements
    names = {name for name, count in n_weights.items() if count >= _NOTABLE_WEIGHTS}
    if names and is_safe:
        table = prompt_table(cache_dir, n_threads)
        names = {name for name in names if not table.has_path(kind_of(name, is_repacked=True))}
    if not names:
        return {}
    tables = TypeTables(cache_dir)
    known = tables.tiled_from()
    if missing := sorted(names - known.keys()):
        from app.engine.llama.type_speeds import TypeBench  # native

        with closing(TypeBench(1, repacks=False, clock=time.process_time)) as bench:
            for name in missing:
                known[name] = bench.tiled_from(name)
                tables.add_tiled_from(name, known[name])
    return {name: known[name] for name in names if known[name] > TILED_FROM}
