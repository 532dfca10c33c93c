"""Times `localllm quantize` and another program that does the same in turns: time, processor time, memory, disk.

    uv run python tests/bench/conversion/time_conversion.py --make CHECKPOINT      # 1.10B weights; takes 9 GB
    uv run python tests/bench/conversion/time_conversion.py CHECKPOINT F16 [--runs 3] [--cold] \\
        --against "python convert_hf_to_gguf.py CHECKPOINT --outtype f16 --outfile {output}"

The other program may be several, in one string with `&&`. Outputs go to a temporary folder beside the source.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from tests.bench.peer.memory import memory_of
from tests.quantizer.checkpoints import TinyLlama

_SHAPE = TinyLlama(n_layers=22, n_embd=2048, n_ff=5632, n_heads=32, n_kv_heads=4, n_vocab=32_000)  # TinyLlama 1.1B's
_POLL_S = 0.05
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took; memory and disk at most."""

    elapsed_s: float
    processor_s: float
    memory_mb: float
    disk_mb: float


def run(command: str, source: Path, *, is_cold: bool) -> Cost:
    """Run a shell command with `{output}` in it, the source in the page cache or not. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        os.sync()
        for path in [source] if source.is_file() else source.iterdir():
            _prepare(path, is_cold=is_cold)
        before, begun, memory, disk = os.times(), time.monotonic(), 0.0, 0.0
        with subprocess.Popen(
            command.replace("{output}", str(Path(folder) / "model.gguf")),
            shell=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while process.poll() is None:
                memory, disk = max(memory, _memory_mb(process.pid)), max(disk, _disk_mb(Path(folder)))
                time.sleep(_POLL_S)
        elapsed_s, after = time.monotonic() - begun, os.times()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    processor_s = sum(after[2:4]) - sum(before[2:4])
    return Cost(elapsed_s, processor_s, memory, disk)


def _prepare(path: Path, *, is_cold: bool) -> None:
    with path.open("rb", buffering=0) as file:
        if is_cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while not is_cold and file.read(_PIECE_BYTES):
            pass


def _memory_mb(pid: int) -> float:
    try:
        return memory_of(pid).rss_bytes / 1e6
    except psutil.Error:
        return 0.0


def _disk_mb(folder: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir() if path.exists()) / 1e6


def _print(name: str, costs: Sequence[Cost]) -> None:
    medians = [statistics.median(values) for values in zip(*map(astuple, costs), strict=True)]
    print("{}: {:.2f} s, processors {:.2f} s, memory {:.0f} MB, disk {:.0f} MB".format(name, *medians), flush=True)


def main() -> int:
    """Print a line for each run and the medians; the exit status is 0 when all ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("type", nargs="?", default="F16")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--against", default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    if options.make:
        _SHAPE.write(options.source)
        return 0
    ours = f"{sys.executable} -P -m app.cli.main quantize {options.source} {options.type} -o {{output}}"
    commands = {"ours": ours} | ({"theirs": options.against} if options.against else {})
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(options.runs):
        for name, command in commands.items():
            costs[name].append(run(command, options.source, is_cold=options.cold))
            _print(name, costs[name][-1:])
    for name, found in costs.items():
        _print(f"{name}, median", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
