"""Runs and quantizes a model under limits of memory, from too little for the command to enough for everything.

    uv run python tests/battery/machine/memory_limits.py MODEL [--steps 60] [--seed 1]

Each step is one command under `ulimit -v` or `ulimit -d` of 60 to 2,600 MiB, as many for each factor. It must give the
very answer or file that it gives without a limit, or end within two minutes with one sentence that has both numbers;
what the C library, OpenBLAS or llama.cpp prints is a fault, and so is a traceback, a half file or a process that stays.
Linux only: no other system enforces such limits.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.library.local.model_sampling import generation_config_path
from quantizer.system.process import python_command
from tests.battery.tally import finish

__all__ = ["Ended", "Limit", "Limited", "fault_of", "limits"]

_LEAST_MIB, _MOST_MIB = 60.0, 2600.0
_KINDS = {"ulimit -v": "RLIMIT_AS", "ulimit -d": "RLIMIT_DATA"}
_BOUND_S = 120.0
_GONE_WITHIN_S = 20.0
_QUESTION = "How do I quantize a model?"
# What the command may print before the sentence: the plan of quantizing, and what it does about little memory.
_REFUSAL = re.compile(
    r"^Error: Not enough memory: .* needs? .* and may use [\d,.]+ [MG]iB(?: \(ulimit -[vd]\))?[.,]", re.MULTILINE
)
_NOT_OURS = re.compile(r"Traceback|OpenBLAS|ggml_|llama_|std::|malloc|terminate called|Segmentation|GGML_")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of `mib` by the command that sets it, for `verb`."""

    verb: str
    command: str
    mib: int

    def __str__(self) -> str:
        return f"{self.verb} under {self.command} of {self.mib} MiB"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `made` is the answer, or the bytes of the file; `beside` are the files left beside that."""

    status: int
    made: bytes
    errors: str
    n_left: int = 0
    beside: tuple[str, ...] = ()


def limits(n_steps: int, chance: random.Random) -> Iterator[Limit]:
    """Yield limits over the whole range, as many for each factor; `run` is drawn more often, for it does more."""
    for index in range(n_steps):
        share = (index + chance.random()) / n_steps
        mib = round(_LEAST_MIB * (_MOST_MIB / _LEAST_MIB) ** share)
        yield Limit(chance.choice(("run", "run", "quantize")), chance.choice(tuple(_KINDS)), mib)


def fault_of(ended: Ended, expected: bytes) -> str:
    """Return what is wrong with how a command ended under a limit, or nothing."""
    if found := _NOT_OURS.search(ended.errors):
        return f"it printed {found[0]}: {ended.errors[-300:]}"
    if ended.beside:
        return f"it left {', '.join(ended.beside)}"
    if ended.n_left:
        return f"{ended.n_left} processes stay"
    if ended.status == 0:
        return "" if ended.made == expected else f"it made something else: {ended.made[:80]!r}"
    if ended.status == 1 and _REFUSAL.search(ended.errors):
        return "" if not ended.made else f"it failed and left {len(ended.made)} bytes"
    return f"it ended with {ended.status}: {ended.errors[-300:]}"


class Limited:
    """Commands over `model` with folders of their own in `folder`."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._output = folder / "made" / "out.gguf"
        self._output.parent.mkdir()
        self._command = {
            "run": ("run", str(model), _QUESTION, "--temp", "0", "--max-tokens", "24", "--threads", "1"),
            "quantize": ("quantize", str(model), "Q4_K_M", "-o", str(self._output), "--threads", "1"),
        }
        own = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
        self._mark = str(folder / "data")
        self._environment = clean | {f"LOCALLLM_{name}": str(folder / place) for name, place in own.items()}
        self._environment["LOCALLLM_PORT"] = "0"
        self.expected = {verb: self._end(verb, "").made for verb in self._command}
        if not all(self.expected.values()):
            sys.exit("Without a limit the commands fail.")

    def attempt(self, limit: Limit) -> str:
        """Run a command under its limit; what is wrong then, or nothing."""
        most = limit.mib << 20
        setting = f"import os, resource as r, sys; r.setrlimit(r.{_KINDS[limit.command]}, ({most}, {most}))"
        try:
            ended = self._end(limit.verb, setting)
        except subprocess.TimeoutExpired:
            return f"it had not ended after {_BOUND_S:.0f} s"
        return fault_of(ended, self.expected[limit.verb])

    def _end(self, verb: str, setting: str) -> Ended:
        command = python_command("tui", *self._command[verb])
        if setting:
            command = [sys.executable, "-c", f"{setting}; os.execv(sys.argv[1], sys.argv[1:])", *command]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_BOUND_S, env=self._environment
            )
        finally:
            left = self._left()
        made = self._output.read_bytes() if self._output.exists() else b""
        self._output.unlink(missing_ok=True)
        if made:  # the guide's own sampling is kept beside what is made of it
            generation_config_path(self._output).unlink(missing_ok=True)
        beside = tuple(path.name for path in self._output.parent.iterdir())
        shutil.rmtree(self._output.parent)
        self._output.parent.mkdir()
        errors = done.stderr.decode(errors="replace")
        return Ended(done.returncode, done.stdout if verb == "run" else made, errors, left, beside)

    def _left(self) -> int:
        """Return how many processes of ours outlived the command, and end them."""
        _, alive = psutil.wait_procs(list(self._ours()), timeout=_GONE_WITHIN_S)
        for process in alive:
            process.kill()
        return len(alive)

    def _ours(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get("LOCALLLM_DATA_DIR") == self._mark:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("Only Linux enforces limits of memory.")
    n_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        limited = Limited(options.model.absolute(), Path(folder))
        for limit in limits(options.steps, random.Random(options.seed)):
            if fault := limited.attempt(limit):
                n_failed += 1
                print(f"{limit}: {fault}", flush=True)
    finish(options.steps, n_failed, options.seed)


if __name__ == "__main__":
    main()
