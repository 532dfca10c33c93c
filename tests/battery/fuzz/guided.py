"""One target under the fuzzer, in a process of its own that may die (this module as `__main__`).

With atheris the inputs are chosen by the coverage of our bytecode, and half of them made by libFuzzer; without it they
are made of the corpus alone. The same seed and corpus give the same inputs. New inputs go to the corpus folder, each
new kind of failure to stdout as a line of JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from quantizer.system.memory_limit import limit_growth
from tests.battery.fuzz.mutations import mutated, stretched
from tests.battery.fuzz.target import Reader, Target, attempt
from tests.battery.fuzz.targets import TARGETS

__all__ = ["HAS_ATHERIS"]

HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
_STRETCHED_BYTES = 128 << 10
_TIMEOUT_S = 300  # of one input by the clock, after which libFuzzer ends the process: nothing in Python could


class Judge:
    """Attempts inputs, and writes each kind of failure with its first input."""

    def __init__(self, target: Target, read: Reader) -> None:
        self._target, self._read = target, read
        self._seen: set[str] = set()

    def __call__(self, data: bytes) -> None:
        failure = attempt(self._target, self._read, data)
        if failure is not None and failure.key not in self._seen:
            self._seen.add(failure.key)
            line = {"key": failure.key, "words": failure.words, "input": data.decode("latin-1")}
            os.write(1, json.dumps(line).encode() + b"\n")  # libFuzzer ends the process without flushing


def _guided(target: Target, corpus: Path, n_executions: int, seed: int) -> None:
    import atheris

    packages = sorted({package.partition(".")[0] for package in target.packages})
    with tempfile.TemporaryDirectory() as folder:
        with atheris.instrument_imports(include=packages):
            judge = Judge(target, target.opened(Path(folder)))
        inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]

        def mutate(data: bytes, max_size: int, chosen: int) -> bytes:
            chance = random.Random(chosen)
            if chance.random() < 0.5:
                return bytes(atheris.Mutate(data, max_size))
            return mutated(target, data, chance.choice(inputs), chance)[:max_size]

        limit_growth(target.memory_bytes)
        options = {
            "runs": n_executions,
            "seed": seed,
            "max_len": target.max_bytes,
            "timeout": _TIMEOUT_S,
            "rss_limit_mb": 0,
            "artifact_prefix": f"{corpus.parent}/",
            "use_value_profile": 1,
        }
        arguments = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(corpus)]
        atheris.Setup(arguments, judge, custom_mutator=mutate)
        atheris.Fuzz()


def _unguided(target: Target, corpus: Path, n_executions: int, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(target, target.opened(Path(folder)))
        inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
        limit_growth(target.memory_bytes)
        last = corpus.parent / "crash-last"
        for number in range(n_executions):
            data = inputs[number] if number < len(inputs) else _made(target, inputs, chance)
            last.write_bytes(data)
            judge(data)
        last.unlink(missing_ok=True)


def _stretched(target: Target, corpus: Path, n_executions: int, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(target, target.opened(Path(folder)))
        inputs = [data for path in sorted(corpus.iterdir()) if (data := path.read_bytes())]
        limit_growth(target.memory_bytes)
        last = corpus.parent / "crash-last"
        for _ in range(n_executions):
            data = stretched(target, chance.choice(inputs), _STRETCHED_BYTES, chance)
            last.write_bytes(data)
            judge(data)
        last.unlink(missing_ok=True)


def _made(target: Target, inputs: list[bytes], chance: random.Random) -> bytes:
    return mutated(target, chance.choice(inputs), chance.choice(inputs), chance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--executions", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--unguided", action="store_true")
    parser.add_argument("--stretched", action="store_true", help="large inputs, for their time")
    options: Any = parser.parse_args()
    run = _stretched if options.stretched else _guided if HAS_ATHERIS and not options.unguided else _unguided
    run(TARGETS[options.target], options.corpus, options.executions, options.seed)


if __name__ == "__main__":
    main()
