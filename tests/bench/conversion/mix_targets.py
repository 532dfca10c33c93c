"""Do `quantize --size` and `--kld` meet their targets, and is the mix nearer to the original than llama.cpp's types?

For each model (a GGUF in F16, BF16 or F32) and each type of llama.cpp's own quantizer, with and without an importance
matrix: a mix of the same size. All are judged against the model on the text that ships for judging. With several
calibration texts each figure is a range over them, and the share of tensors with the same type from two texts is shown.
Then mixes for divergences in between. Exits with 1 where a size is missed by 2 %, a divergence by 10 %, or a type of
llama.cpp is better with the same text.

    python tests/bench/conversion/mix_targets.py MODEL.gguf... --texts A.txt B.txt --types Q4_K_M IQ4_XS --sizes-only
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli import calibration
from app.cli.resources import read_text, shipped
from app.engine.offline.evaluation import EvalRequest, run_eval
from quantizer.gguf.tensor_types import file_type_named
from quantizer.mix.imatrix import read_imatrix
from quantizer.system.process import python_command
from quantizer.write.job import JobRequest, run_job

TYPES = ("Q3_K_M", "Q4_K_M", "Q5_K_M", "IQ3_XXS", "IQ4_XS")
NEED_MATRIX = ("IQ3_XXS",)
FLOATS = ctypes.POINTER(ctypes.c_float)
SIZE_TOLERANCE, KLD_TOLERANCE = 0.02, 0.1
N_CTX, N_THREADS = 256, 1


@dataclass(frozen=True, slots=True)
class Figures:
    """How far a file is from its original: nats a token, and how often both have the same likeliest token."""

    kld: float
    same_top: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--texts", type=Path, nargs="+", default=[calibration.CALIBRATION])
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--sizes-only", action="store_true")
    arguments = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            klds = []
            for name in arguments.types:
                is_met, kld = compare(model, name, arguments.texts, Path(folder))
                is_good &= is_met
                klds.append(kld)
            if not arguments.sizes_only:
                for target in between(klds):
                    is_good &= meets_divergence(model, target, Path(folder))
    return 0 if is_good else 1


def compare(model: Path, name: str, texts: Sequence[Path], folder: Path) -> tuple[bool, float]:
    """Print what llama.cpp's type `name` loses and what mixes of its size do. Return whether each mix is as large and
    loses less, and the least that one loses."""
    theirs, ours, types, offs = [], [], [], []
    output = folder / "model.gguf"
    plain = None
    if name not in NEED_MATRIX:
        llama_quantize(model, output, name, None)
        plain = judge(output, model)
    for text in texts:
        calibration.CALIBRATION = text
        with calibration.Runnable(model, "F16", N_THREADS) as running:
            matrix = calibration.cached_imatrix(model, running, N_THREADS)
        llama_quantize(model, output, name, matrix)
        n_bytes = output.stat().st_size
        theirs.append(judge(output, model))
        request = JobRequest(str(model), "Q4_K_M", str(output), N_THREADS, is_overwriting=True)
        found = calibration.find_mix(request, calibration.MixTarget(n_bytes), N_THREADS)
        for _ in run_job(found.request):
            pass
        offs.append(output.stat().st_size / n_bytes - 1)
        ours.append(judge(output, model))
        types.append(found.mix.types)
    measured = next(iter(found.search.sensitivities.values()))
    print(f"{model.name} {name} {n_bytes:,} bytes, {measured.n_windows} windows of {measured.n_ctx} tokens")
    for label, figures in (("llama.cpp, no matrix", [plain] if plain else []), ("llama.cpp", theirs), ("mix", ours)):
        if figures:
            print(f"  {label:22} KLD {spread(f.kld for f in figures)}  same top {spread(f.same_top for f in figures)}")
    print(f"  off by {spread(offs)}; same types {spread(equal_shares(types)) if len(texts) > 1 else '-'}", flush=True)
    is_met = all(-SIZE_TOLERANCE <= off <= 0 for off in offs)
    is_better = all(our.kld < their.kld for our, their in zip(ours, theirs, strict=True))
    return is_met and is_better and (plain is None or max(our.kld for our in ours) < plain.kld), min(
        our.kld for our in ours
    )


def equal_shares(types: Sequence[Mapping[str, str]]) -> list[float]:
    """Return the share of tensors of the same type, for each pair of mixes."""
    return [sum(a[name] == b[name] for name in a) / len(a) for a, b in itertools.combinations(types, 2)]


def spread(values: Iterable[float]) -> str:
    figures = list(values)
    low, high = min(figures), max(figures)
    return f"{low:.4g}" if low == high else f"{low:.4g}-{high:.4g}"


def judge(model: Path, reference: Path) -> Figures:
    request = EvalRequest((str(model), str(reference)), read_text(shipped("evaluation.txt")), N_CTX, 0, N_THREADS)
    comparison = run_eval(request, lambda steps: steps).statistics.comparison
    assert comparison is not None
    return Figures(comparison.mean_kld.value, comparison.same_top.value)


def between(klds: Sequence[float]) -> Iterator[float]:
    ordered = sorted(klds)
    return ((low * high) ** 0.5 for low, high in itertools.pairwise(ordered))


def meets_divergence(model: Path, target: float, folder: Path) -> bool:
    output = folder / "mix.gguf"
    mix = localllm("quantize", model, "--kld", f"{target:.3g}", "-o", output, "--overwrite")
    off = judge(output, model).kld / target - 1
    print(f"{model.name} --kld {target:.3g}: off by {off:+.2%}, {mix['bytes']:,} bytes", flush=True)
    return -KLD_TOLERANCE <= off <= 0.01


def localllm(*arguments: object) -> dict[str, Any]:
    command = python_command("app.cli.main", *map(str, arguments), "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def llama_quantize(model: Path, output: Path, name: str, matrix: Path | None) -> None:
    """Quantize with llama.cpp's own function, which llama-quantize calls, in a process of its own."""
    arguments = [str(model), str(output), str(file_type_named(name).ftype_id), *([str(matrix)] if matrix else [])]
    subprocess.run([sys.executable, __file__, "--child", *arguments], check=True, stderr=subprocess.DEVNULL)


def quantize_in_child(model: str, output: str, ftype_id: str, matrix: str = "") -> int:
    from llama_cpp import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = int(ftype_id), N_THREADS
    with ExitStack() as kept:
        if matrix:
            means = {name: entry.means().ravel() for name, entry in read_imatrix(Path(matrix)).entries.items()}
            entries = [
                llama_cpp.llama_model_imatrix_data(name.encode(), mean.ctypes.data_as(FLOATS), mean.size)
                for name, mean in means.items()
            ]
            kept.callback(means.clear)
            params.imatrix = (llama_cpp.llama_model_imatrix_data * (len(entries) + 1))(*entries)
        return int(llama_cpp.llama_model_quantize(model.encode(), output.encode(), params))


if __name__ == "__main__":
    sys.exit(quantize_in_child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main())
