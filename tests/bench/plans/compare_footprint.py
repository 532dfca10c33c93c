"""Compare what `offload` says a model takes with what llama.cpp logs, on the outlines of published models.

Run: `uv run python tests/bench/plans/compare_footprint.py [--golden tests/offload/footprints.json] [MODEL ...]`. Models
are sparse files, so nothing is downloaded; contexts are dry runs. Weights and cache must agree to the last digit that
llama.cpp prints, compute buffers within 15 %; `--golden` writes what it printed for the tests to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.engine.llama.native import lib
from offload.footprint.kv_cache import parse_kv_types
from tests.bench.plans.engine_log import EngineLog
from tests.offload.footprint_figures import Figures, Run, predicted
from tests.offload.model_outlines import OUTLINES, header_of, write_outline

N_SEQUENCES, N_UBATCH = 8, 512
CONTEXTS = (512, 4096, 8192, 32_768)
KV_TYPES = ("f16", "q8_0", "q4_0")
MAX_MAPPED_BYTES = 10 << 30  # mapping fills the page cache with zeros
_SIZE = re.compile(r"(K|V|R|S) \(\w+\): +([\d.]+) MiB")


def cache_mib(log: EngineLog, kinds: str) -> float:
    """Return the MiB of all caches of these kinds (K, V, R, S), as printed."""
    return sum(float(size) for kind, size in _SIZE.findall(log.text) if kind in kinds)


def measure(name: str, log: EngineLog, folder: Path) -> Figures:
    """Load the outline called `name` and make contexts over it, all as dry runs but for the mapped weights."""
    path = folder / f"{name}.gguf"
    write_outline(name, path)
    model = load(path, log, is_dry=True)
    try:
        figures = Figures(lib.llama_model_size(model), 0.0, tuple(runs(model, log)))
    finally:
        lib.llama_model_free(model)
    if path.stat().st_size <= MAX_MAPPED_BYTES:
        lib.llama_model_free(load(path, log, is_dry=False))
        figures = Figures(figures.tensor_bytes, log.buffers_of("model"), figures.runs)
    path.unlink()
    return figures


def load(path: Path, log: EngineLog, *, is_dry: bool) -> int:
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts, params.no_alloc = 0, False, is_dry
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE if is_dry else lib.LLAMA_LOAD_MODE_MMAP
    log.text = ""
    model: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(log.text)
    return model


def runs(model: int, log: EngineLog) -> Iterator[Run]:
    for n_ctx in CONTEXTS:
        for kv_type in KV_TYPES:
            for is_fused in (True, False) if kv_type == "f16" else (True,):
                yield run(model, log, n_ctx, kv_type, is_fused=is_fused)


def run(model: int, log: EngineLog, n_ctx: int, kv_type: str, *, is_fused: bool) -> Run:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, N_UBATCH, N_UBATCH, N_SEQUENCES
    params.kv_unified, params.swa_full = True, False
    params.type_k, params.type_v = parse_kv_types(kv_type).ids
    params.flash_attn_type = int(is_fused)
    log.text = ""
    context = lib.llama_init_from_model(model, params)
    if not context:
        sys.exit(log.text)
    lib.llama_free(context)
    return Run(
        n_ctx,
        kv_type,
        is_fused,
        *(cache_mib(log, kinds) for kinds in ("KV", "RS")),
        log.buffers_of("compute"),
    )


def compare(name: str, measured: Figures) -> float:
    """Print where prediction and log differ; return the largest relative error of the compute buffer."""
    ours = predicted(header_of(name), measured)
    worst = 0.0
    if ours.tensor_bytes != measured.tensor_bytes or abs(ours.mapped_mib - measured.mapped_mib) > 0.005:
        print(f"  weights: {ours.tensor_bytes} {ours.mapped_mib}, logged {measured.tensor_bytes} {measured.mapped_mib}")
    for mine, theirs in zip(ours.runs, measured.runs, strict=True):
        # every cache is rounded for itself: two keys and values, up to four lines
        if abs(mine.kv_mib - theirs.kv_mib) > 0.021 or abs(mine.state_mib - theirs.state_mib) > 0.011:
            print(f"  cache: {mine}, logged {theirs}")
        error = mine.compute_mib / theirs.compute_mib - 1
        if abs(error) > 0.05:
            print(f"  compute {error:+.1%}: {mine.compute_mib:.1f}, logged {theirs}")
        worst = max(worst, error, -error)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(OUTLINES)}; all without any")
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args()
    log = EngineLog()
    lib.llama_backend_init()
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or OUTLINES:
            figures = measure(name, log, Path(folder))
            print(f"{name}: {len(figures.runs)} runs")
            print(f"  compute within {compare(name, figures):.1%}")
            golden[name] = figures.to_json()
    if options.golden:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in golden.items())
        options.golden.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
