"""Compare the memory in the plan of a local file with contexts that llama.cpp really makes.

Run: `uv run python tests/bench/plans/compare_dry_run.py [MODEL ...]`. Models are sparse files at the shapes of
published ones, cut to their first layers or experts so that weights and caches fit into memory; that a dry run of whole
ones has the same result is checked too. Compute buffers must agree within 5 %, all of the memory within 3 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.engine.llama.model import dry_context_params
from app.engine.llama.native import lib
from app.engine.load.planner import DryRunRequest, compute_by_device
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.load_parameters import ON_HOST
from tests.bench.plans.engine_log import EngineLog
from tests.offload.model_outlines import OUTLINES, Outline, header_of, write_outline

CONTEXTS = (512, 4096, 8192, 32_768)
KV_TYPES = ("f16", "q8_0", "q4_0")
N_LAYERS, N_EXPERTS, N_SEQUENCES = 8, 16, 8
MOST_COMPUTE, MOST_TOTAL = 0.05, 0.03
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """One model under one setting: MiB as planned and as logged, in buffers to compute in and in all."""

    setting: RunConfig
    compute: tuple[float, float]
    total: tuple[float, float]
    is_same_whole: bool

    @property
    def errors(self) -> tuple[float, float]:
        """By what share compute and total are off."""
        return tuple(abs(ours / logged - 1) for ours, logged in (self.compute, self.total))  # type: ignore[return-value]


def cut(outline: Outline) -> Outline:
    if outline.architecture == "deepseek2":  # llama.cpp knows its kinds by their layers
        return replace(outline, n_experts=N_EXPERTS)
    heads = outline.n_kv_heads
    n_layers = min(outline.n_layers, N_LAYERS)
    return replace(outline, n_layers=n_layers, n_kv_heads=heads[:n_layers] if isinstance(heads, tuple) else heads)


def settings() -> Iterator[RunConfig]:
    for n_ctx in CONTEXTS:
        for name in KV_TYPES:
            types = KvTypes(name, name)
            is_fused = types.needs_flash_attention
            yield RunConfig(n_ctx=n_ctx, n_cells=n_ctx, kv_types=types, n_sequences=N_SEQUENCES, is_fused=is_fused)


def points(name: str, log: EngineLog, folder: Path) -> Iterator[Point]:
    whole, part = folder / f"{name}.gguf", folder / f"{name}-part.gguf"
    write_outline(name, whole)
    OUTLINES[part.stem] = cut(OUTLINES[name])
    write_outline(part.stem, part)
    header = header_of(part.stem)
    model = load(part, log)
    try:
        weights_mib = log.buffers_of("model")
        for setting in settings():
            runs = (compute_by_device(DryRunRequest(path, setting)) for path in (part, whole))
            dry, dry_whole = (sum(run.values()) for run in runs)
            planned = PlannedModel(header, header.tensors).measured(setting, dry).profile(setting)
            cached, computed = make_context(model, log, setting)
            ours = planned.weight_bytes + planned.cache_bytes + planned.compute_bytes
            yield Point(
                setting,
                (planned.compute_bytes / MIB, computed),
                (ours / MIB, weights_mib + cached + computed),
                abs(dry - dry_whole) <= MIB,
            )
    finally:
        lib.llama_model_free(model)
        whole.unlink()
        part.unlink()


def load(path: Path, log: EngineLog) -> int:
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    log.text = ""
    model: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(log.text)
    return model


def make_context(model: int, log: EngineLog, setting: RunConfig) -> tuple[float, float]:
    """Make the engine's context and free it; return the MiB of its caches and states, and those that it computes in."""
    log.text = ""
    context = lib.llama_init_from_model(model, dry_context_params(model, setting, ON_HOST))
    if not context:
        sys.exit(log.text)
    lib.llama_free(context)
    return log.buffers_of("KV") + log.buffers_of("RS"), log.buffers_of("compute")


def row(point: Point) -> str:
    setting, (compute, total) = point.setting, point.errors
    sizes = f"compute {point.compute[0]:.1f}/{point.compute[1]:.1f} MiB, all {point.total[0]:.1f}/{point.total[1]:.1f}"
    wrong = "" if point.is_same_whole else ", ALL LAYERS DIFFER"
    return f"  {setting.n_ctx:>6} {setting.kv_types!s:5} {sizes} MiB: {compute:.2%}, {total:.2%}{wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(OUTLINES)}; all without any")
    options = parser.parse_args()
    log = EngineLog()
    lib.llama_backend_init()
    found: list[Point] = []
    for name in options.models or list(OUTLINES):
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for point in points(name, log, Path(folder)):
                found.append(point)
                print(row(point), flush=True)
    compute, total = (max(errors) for errors in zip(*(point.errors for point in found), strict=True))
    is_fine = compute <= MOST_COMPUTE and total <= MOST_TOTAL and all(point.is_same_whole for point in found)
    print(f"{len(found)} points: compute within {compute:.2%}, all within {total:.2%}")
    sys.exit(not is_fine)


if __name__ == "__main__":
    main()
