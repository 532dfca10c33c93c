"""Whether prompts and answers are predicted from what this machine takes for each type of weights.

Run: `uv run python tests/bench/plans/type_speeds.py FOLDER [MODEL.gguf ...]`. Measures the types in a child, as the
service does in idle moments, then writes one seeded Qwen3 shape into FOLDER in 12 pure types and 6 mixes, and loads
them, the guide and each MODEL one after the other. Prints for each a prompt of 512 tokens and an answer behind it, in
tokens a second: measured, predicted by the types alone, and predicted after the runs of all models before. Exits with 1
where a prompt is off by more than 20 % or an answer by more than 15 %.

With one thread (the default) the clock is the time of this process. Other programs lengthen it by the memory bandwidth
and the caches that they take, so the types of a model are measured again before and after it ran, and their mean
predicts it. `--once` predicts by the first measurement alone: for a quiet machine, as is `--clock wall` with more
threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from app.engine.backend import Chunk
from app.engine.llama.type_speeds import TypeBench
from app.engine.load.loading import LoadListener, load_model
from app.engine.load.machine import detect_machine
from app.engine.load.run_history import RunHistory, RunRecord, SpeedSample, machine_key, measured_runs
from app.engine.load.type_tables import type_tables
from app.engine.messages import EngineConfig
from app.engine.model_task import TaskProgress, run_task
from app.engine.request import SamplingParams
from app.engine.tuning.type_tuner import MeasuredKind, TypeTuneRequest
from offload.devices.machine import HOST_NAME
from offload.speed.cost_model import Rates, decode_s, expected_rates, prefill_s
from offload.speed.rate_fitting import fit_rates
from offload.speed.type_costs import TypeCost, kind_of
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from tests.bench.models.make_model import plan_random_model
from tests.bench.models.shapes import SHAPES

__all__: list[str] = []

_SHAPE = "qwen3-0.6b"
_N_LAYERS, _N_VOCAB = 6, 16_384  # 94M weights beside the embedding: beyond the caches, and written in a moment
_PURE = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q5_0", "Q4_K", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K")
_BASE = {"Q5_K": "Q5_K_M", "Q4_K": "Q4_K_M", "Q3_K": "Q3_K_M"}
_MIXES: dict[str, tuple[str, PlanOptions]] = {
    "mix Q4_K_M": ("Q4_K_M", PlanOptions()),
    "mix Q5_K_M": ("Q5_K_M", PlanOptions()),
    "mix Q3_K_M": ("Q3_K_M", PlanOptions()),
    "mix IQ4_XS": ("IQ4_XS", PlanOptions()),
    "mix Q4_0 + Q6_K": ("Q4_0", PlanOptions(output_type="Q6_K", embedding_type="Q6_K")),
    "mix of ours": (
        "Q4_K_M",
        PlanOptions(tensor_types=("attn_v=Q6_K", "attn_(k|q)=Q5_K", "ffn_down=IQ4_XS", "ffn_gate=Q4_0", "ffn_up=Q4_1")),
    ),
}
_N_PROMPT, _N_ANSWER, _N_ROUNDS = 512, 24, 3
_MOST_OFF = {"prefill": 0.20, "decode": 0.15}
_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True, slots=True)
class Row:
    """One model: by kind of run what was measured, and predicted fresh and after others, in tokens a second."""

    name: str
    speeds: dict[str, tuple[float, float, float]]

    def errors(self, kind: str) -> tuple[float, float]:
        measured, *predicted = self.speeds[kind]
        fresh, after = (each / measured - 1 for each in predicted)
        return fresh, after


def models(folder: Path, others: list[Path]) -> Iterator[tuple[str, Path]]:
    for name, (base, options) in [
        *((kind, (_BASE.get(kind, kind), PlanOptions(tensor_types=(f".={kind}",)))) for kind in _PURE),
        *_MIXES.items(),
    ]:
        path = folder / f"{name.replace(' ', '-')}.gguf"
        if not path.exists():
            SHAPES["types"] = replace(SHAPES[_SHAPE], n_layers=_N_LAYERS, n_vocab=_N_VOCAB)
            plan = plan_random_model("types", file_type_named(base), path, options=options)
            execute(plan, os.cpu_count() or 1, is_overwriting=True, report=lambda _event: None)
        yield name, path
    yield from ((path.name, path) for path in others)


def measured(path: Path, cache_dir: Path, n_threads: int, clock: Callable[[], float]) -> list[RunRecord]:
    """Return the runs of a prompt and of an answer behind it, the best of some rounds."""
    config = EngineConfig(n_ctx=2 * _N_PROMPT, n_sequences=1, n_threads=n_threads)
    loaded = load_model(path, config, cache_dir, LoadListener(lambda _fraction: True, print, lambda _plan: None))
    history, machine = RunHistory(cache_dir), detect_machine((), cache_dir)
    n_before = len(history.records(machine_key(machine)))
    with loaded.owned:
        backend = loaded.backend
        sampler = backend.new_sampler(SamplingParams(seed=1), ignore_eos=True)

        def decode(position: int, n_tokens: int) -> None:
            tokens = [1 + (position + index) * 7919 % (backend.facts.n_vocab - 1) for index in range(n_tokens)]
            backend.decode([Chunk(0, position, tokens, 1)])
            sampler.sample(n_tokens - 1)

        decode(0, 32)
        prompts, answers = [], []
        for _ in range(_N_ROUNDS):
            backend.truncate(0, 0)
            begun_s = clock()
            decode(0, _N_PROMPT)
            prompts.append(_N_PROMPT / (clock() - begun_s))
            begun_s = clock()
            for index in range(_N_ANSWER):
                decode(_N_PROMPT + index, 1)
            answers.append(_N_ANSWER / (clock() - begun_s))
        depth = _N_PROMPT + _N_ANSWER // 2
        loaded.record_speed(SpeedSample(max(answers), depth, depth, max(prompts), _N_PROMPT, 0.0))
        sampler.close()
    return history.records(machine_key(machine))[n_before:]


def possible_kinds(path: Path) -> set[str]:
    """Return the kinds that the model at `path` may use: its types, on either path."""
    header = read_header(path)
    names = {TENSOR_TYPES[tensor.type_id].name for tensor in header.tensors if len(tensor.shape) > 1}
    return {kind_of(name, is_repacked=is_repacked) for name in names for is_repacked in (False, True)}


def measured_now(kinds: set[str], options: argparse.Namespace) -> dict[str, TypeCost]:
    with closing(TypeBench(options.threads, repacks=True, clock=_CLOCKS[options.clock])) as bench:
        found = {kind: measure() for kind, measure in bench.kinds() if kind in kinds}
    return {kind: cost for kind, cost in found.items() if cost is not None}


def mean_cost(one: TypeCost, other: TypeCost) -> TypeCost:
    parts = ("one", "cached", "few", "many")
    return TypeCost(*(getattr(one, part).towards(getattr(other, part), 0.5) for part in parts))


def predicted(record: RunRecord, rates: Rates) -> float:
    if record.kind == "decode":
        return 1 / decode_s(record.work, rates)
    return 1 / prefill_s(record.work, rates, HOST_NAME, record.n_ubatch)


def rows(options: argparse.Namespace, cache_dir: Path) -> Iterator[Row]:
    machine = detect_machine((), cache_dir)
    known: list[RunRecord] = []
    table = type_tables(machine, cache_dir, options.threads)[HOST_NAME]
    for name, path in models(options.folder, options.models):
        if options.only not in name:
            continue
        kinds = set() if options.once else possible_kinds(path)
        before = measured_now(kinds, options)
        records = measured(path, cache_dir, options.threads, _CLOCKS[options.clock])
        types = {kind: mean_cost(before[kind], cost) for kind, cost in measured_now(kinds, options).items()}
        now = replace(table, types={**table.types, **types})
        fresh = expected_rates(machine, {HOST_NAME: now})
        after = fit_rates(fresh, *measured_runs(known, options.threads))
        speeds = {
            record.kind: (record.tokens_per_s, predicted(record, fresh), predicted(record, after)) for record in records
        }
        known += records
        yield Row(name, speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=_CLOCKS, default="processor")
    parser.add_argument("--once", action="store_true", help="measure no type again beside each model")
    parser.add_argument("--only", default="", help="a part of the names of the models to run")
    parser.add_argument("--keep-table", action="store_true", help="use the table of an earlier run")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cache_dir = options.folder / "cache"
    os.environ["LOCALLLM_CACHE_DIR"] = str(cache_dir)
    for name in ("runs.jsonl", *(() if options.keep_table else ("types.json",))):
        (cache_dir / name).unlink(missing_ok=True)
    if not (cache_dir / "types.json").exists():
        begun_s = time.perf_counter()
        request = TypeTuneRequest(options.threads, options.clock)
        found = run_task("app.engine.tuning.type_tuner", request, TaskProgress, MeasuredKind)
        print(f"measured {sum(each.cost is not None for each in found)} kinds in {time.perf_counter() - begun_s:.0f} s")
    print(
        f"{'':18} {'prompt':>7} {'fresh':>12} {'after others':>14}   {'answer':>7} {'fresh':>12} {'after others':>14}"
    )
    guide = resources.files("assets") / "guide" / "guide-Q8_0.gguf"
    worst = {kind: [0.0, 0.0] for kind in _MOST_OFF}
    with resources.as_file(guide) as path:
        options.models.insert(0, path)
        for row in rows(options, cache_dir):
            cells = []
            for kind in _MOST_OFF:
                tps, fresh, after = row.speeds[kind]
                errors = row.errors(kind)
                cells.append(f"{tps:7.1f} {fresh:6.1f} {errors[0]:+5.0%} {after:8.1f} {errors[1]:+5.0%}")
                worst[kind] = [max(before, abs(error)) for before, error in zip(worst[kind], errors, strict=True)]
            print(f"{row.name[:18]:18} {'   '.join(cells)}", flush=True)
    for kind, (fresh, after) in worst.items():
        print(f"{kind}: off by at most {fresh:.0%} fresh, {after:.0%} after others (aim {_MOST_OFF[kind]:.0%})")
    sys.exit(any(max(errors) > _MOST_OFF[kind] for kind, errors in worst.items()))


if __name__ == "__main__":
    main()
