"""Time `localllm ls` on many models: all known to the index, and read for the first time.

Run: `uv run python tests/bench/service/list_models.py`. The models are links to a few files, each of which is read for
itself: small ones, and ones with about 151,936 tokens and their merges, whose vocabulary is one for all, as it is in a
family of models, or another one in each. Prints medians of five runs, processes included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from quantizer.system.process import python_command
from tests.bench.service.bench_header import write_model

_N_RUNS = 5
_N_STRANGERS = 10


def listed(root: Path) -> tuple[float, float, int]:
    """Run `localllm ls` over the folders of `root`: seconds until a model shows, seconds in all, lines."""
    folders = {"LOCALLLM_DATA_DIR": root / "data", "LOCALLLM_CACHE_DIR": root / "cache", "LOCALLLM_CONFIG": root / "c"}
    environment = os.environ | {name: str(path) for name, path in folders.items()}
    started_s = time.perf_counter()
    with subprocess.Popen(python_command("tui", "ls"), env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the head of the table
        process.stdout.readline()
        first_s = time.perf_counter() - started_s
        n_lines = 2 + len(process.stdout.readlines())
    assert process.returncode == 0
    return first_s, time.perf_counter() - started_s, n_lines


def library(root: Path, sources: list[Path], n_models: int) -> None:
    """Give `sources` as many names in the models folder of `root`, in turn and ten to a repo."""
    for number in range(n_models):
        path = root / "data" / "models" / f"publisher{number % 7}" / f"repo{number // 10}" / f"model-{number}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(sources[number % len(sources)])


def report(root: Path, n_tokens: int, n_models: int, n_vocabularies: int) -> None:
    """Print how long the first and the later lists of `n_models` take, whose vocabularies have about `n_tokens`."""
    root.mkdir()
    sources = [root / f"{number}.gguf" for number in range(n_vocabularies)]
    for number, source in enumerate(sources):
        write_model(source, n_tokens - number)
    library(root, sources, n_models)
    first_s, cold_s, n_lines = listed(root)
    assert n_lines >= n_models
    known_s = statistics.median(listed(root)[1] for _ in range(_N_RUNS))
    a_file_ms = 1000 * (cold_s - known_s) / n_models
    print(
        f"{n_models:>5} models, {n_vocabularies} vocabularies of {n_tokens} tokens: known {known_s:.3f} s; "
        f"unknown {cold_s:.2f} s, {a_file_ms:.1f} ms a file, the first line after {first_s:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--large-models", type=int, default=30, help="models with the large vocabulary")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder, "small"), 600, arguments.models, 1)
        report(Path(folder, "family"), 151_936, arguments.large_models, 1)
        report(Path(folder, "strangers"), 151_936, _N_STRANGERS, _N_STRANGERS)


if __name__ == "__main__":
    main()
