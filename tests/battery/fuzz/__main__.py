"""Fuzzes every reader of foreign bytes, one after the other, guided by coverage where atheris is installed.

    uv run --group dev --group fuzz python -m tests.battery.fuzz [--executions 100000] [--only schema] [--grow]
    uv run --group dev python -m tests.battery.fuzz --only schema --input FILE    # one input again, with its traceback

The executions are those of all targets together. Each kind of failure is printed with the command that repeats its
input, which is kept below the folder of `--inputs`. With `--grow` the corpora are replaced by the smallest inputs that
reach all that was reached. Without atheris inputs are made of the corpus at random.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from quantizer.system.process import python_command
from tests.battery.fuzz.corpus import arcs_of, kept_inputs, smallest_cover, write_corpus
from tests.battery.fuzz.guided import HAS_ATHERIS
from tests.battery.fuzz.target import Target, attempt
from tests.battery.fuzz.targets import TARGETS
from tests.battery.tally import finish
from tests.bench.report import show

__all__ = ["Outcome", "fuzzed"]

_MAX_CORPUS_BYTES = 4_500  # of a target's file
_STATUS = re.compile(r"^#(\d+)\s+(INITED|DONE)\s+cov: (\d+)", re.MULTILINE)
_STRETCHED_ONE_IN = 100  # of the executions, large inputs besides
_LAST_WORDS = 600  # characters of a process that died


@dataclass(slots=True)
class Outcome:
    """What came of a target: executions, the edges that libFuzzer saw at first and at last (0 without it), the arcs
    between lines of the seeds, of all inputs and of those that are kept, and failures by their key: words and the
    input."""

    target: Target
    n_executions: int
    edges: tuple[int, int] = (0, 0)
    arcs: tuple[int, int, int] = (0, 0, 0)
    failures: dict[str, tuple[str, bytes]] = field(default_factory=dict)


def fuzzed(
    target: Target, n_executions: int, seed: int, *, is_growing: bool = False, is_guided: bool = True
) -> Outcome:
    """Fuzz `target` in a child process."""
    outcome = Outcome(target, n_executions)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus")
        corpus.mkdir()
        for data in kept_inputs(target):
            (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
        drawn = ["--seed", str(seed), *([] if is_guided else ["--unguided"])]
        outcome.edges = _run(outcome, corpus, ["--executions", str(n_executions), *drawn])
        n_stretched = n_executions // _STRETCHED_ONE_IN
        _run(outcome, corpus, ["--executions", str(n_stretched), *drawn, "--stretched"])
        if is_growing:
            with tempfile.TemporaryDirectory() as folder:
                read = target.opened(Path(folder))
                seeds = set[Any]().union(*(arcs_of(target, read, data) for data in target.seeds()))
                found = (path.read_bytes() for path in sorted(corpus.iterdir()))
                inputs = [data for data in found if attempt(target, read, data) is None]  # a failure is to be mended
                kept, arcs, reached = smallest_cover(target, read, inputs, _MAX_CORPUS_BYTES)
            write_corpus(target, kept)
            outcome.arcs = (len(seeds), len(reached), len(arcs))
    return outcome


def _run(outcome: Outcome, corpus: Path, options: list[str]) -> tuple[int, int]:
    """Run the fuzzer in a child, add what failed to `outcome`, and return the edges at first and at last."""
    command = python_command("tests.battery.fuzz.guided", outcome.target.name, str(corpus), *options)
    run = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, check=False)
    words = run.stderr.decode("utf-8", "replace")
    for line in run.stdout.splitlines():
        if line.startswith(b'{"key"'):
            found = json.loads(line)
            outcome.failures.setdefault(found["key"], (found["words"], found["input"].encode("latin-1")))
    if run.returncode:
        left = next((path for path in sorted(corpus.parent.glob("*-*"))), None)
        data = left.read_bytes() if left else b""
        outcome.failures[f"the process ended with {run.returncode}"] = (words[-_LAST_WORDS:], data)
    edges = {name: int(n) for _, name, n in _STATUS.findall(words)}
    return edges.get("INITED", 0), edges.get("DONE", 0)


def _repeated(target: Target, path: Path) -> None:
    """Read one input, and say what came of it."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        read = target.opened(Path(folder))
        failure = attempt(target, read, data)
        if failure is None:
            print(f"{target.name} takes it, or refuses it as it should.")
            return
        print(f"{failure.key}: {failure.words}")
        try:
            read(data)
        except Exception:
            traceback.print_exc()
    sys.exit(1)


def _chosen(names: str) -> Iterator[Target]:
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if name not in TARGETS:
            sys.exit(f"There is no target {name}: {', '.join(TARGETS)}")
    yield from (TARGETS[name] for name in wanted or TARGETS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=100_000, help="of all targets together (100,000)")
    parser.add_argument("--only", default="", help="names of targets, with commas between (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grow", action="store_true", help="keep what reaches more")
    parser.add_argument("--unguided", action="store_true", help="as without atheris")
    parser.add_argument("--input", type=Path, help="the one input to try, of the one target")
    parser.add_argument("--inputs", type=Path, default=Path(tempfile.gettempdir(), "localllm-fuzz"))
    options = parser.parse_args()
    targets = list(_chosen(options.only))
    if options.input:
        _repeated(targets[0], options.input)
        return
    is_guided = HAS_ATHERIS and not options.unguided
    if not is_guided:
        print("Not guided by coverage: that needs `uv run --group dev --group fuzz`.", flush=True)
    n_each = max(1, options.executions // len(targets))
    made = Table("target", "executions", "edges", "arcs", "failures", box=None, pad_edge=False)
    n_failed = 0
    for target in targets:
        outcome = fuzzed(target, n_each, options.seed, is_growing=options.grow, is_guided=is_guided)
        n_failed += len(outcome.failures)
        for key, (words, data) in outcome.failures.items():
            path = options.inputs / f"{target.name}-{hashlib.sha1(key.encode()).hexdigest()[:8]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            shown = words[:300].encode("utf-8", "backslashreplace").decode()  # may have half a surrogate pair
            print(f"{target.name}: {key}\n  {shown}\n  {data[:200]!r}")
            print(f"  python -m tests.battery.fuzz --only {target.name} --input {path}", flush=True)
        spans = [
            " → ".join(f"{n:,}" for n in counts) if any(counts) else "" for counts in (outcome.edges, outcome.arcs)
        ]
        made.add_row(target.name, f"{n_each:,}", *spans, str(len(outcome.failures)))
    show(made)
    finish(n_each * len(targets), n_failed, options.seed)


if __name__ == "__main__":
    main()
