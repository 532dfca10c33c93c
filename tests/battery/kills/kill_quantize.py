"""Kills quantizations at random moments, and lets their disk end at many offsets; then runs each again to its end.

    uv run python tests/battery/kills/kill_quantize.py MODEL [--type Q4_K_M] [--kills 100] [--offsets 50]
        [--shard-size BYTES] [--seed 1]

Fails the run when a file under a final name is not whole, when the second run does not give the very same bytes, when
it does a tensor again that the first one had reported, or when anything else is left in the folder. Seeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantizer.system.errors import UserError
from quantizer.write.events import JobFailed, JobPlanned, JobResumed, TensorWritten, decode_event
from quantizer.write.job import JobRequest, run_job
from quantizer.write.partial_output import lock_path
from tests.battery.tally import finish

__all__ = ["Trial", "cut_short", "killed"]

_COMMAND = [sys.executable, "-P", "-m", "quantizer.write.job"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a request does when nothing goes wrong: the bytes of its files, and how long it takes."""

    request: JobRequest
    expected: dict[str, bytes]
    elapsed_s: float

    @property
    def asked(self) -> bytes:
        """The request as a line of its process's stdin."""
        return json.dumps(dataclasses.asdict(self.request)).encode() + b"\n"

    @classmethod
    def of(cls, request: JobRequest) -> Trial:
        """Carry the request out once and remember; its folder is empty again afterwards."""
        begun_s = time.monotonic()
        list(run_job(request))
        elapsed_s = time.monotonic() - begun_s
        expected = {}
        for path in Path(request.output).parent.iterdir():
            expected[path.name] = path.read_bytes()
            path.unlink()
        return cls(request, expected, elapsed_s)

    def fault(self, n_reported: int) -> str:
        """Run again after an interruption that `n_reported` tensors came before; what is wrong then, or nothing."""
        found = self._found()
        if any(found[name] != self.expected[name] for name in found.keys() & self.expected.keys()):
            return "a file stands under its final name and is not whole"
        found.pop(lock_path(Path(self.request.output)).name, None)  # all that a run killed at its very end may leave
        events = [] if found == self.expected else list(run_job(self.request))
        resumed = sum(event.n_tensors for event in events if isinstance(event, JobResumed))
        n_tensors = sum(event.n_tensors for event in events if isinstance(event, JobPlanned))
        n_done = sum(isinstance(event, TensorWritten) for event in events)
        found = self._found()
        for name in found:
            Path(self.request.output).with_name(name).unlink()
        if not events:
            found.pop(lock_path(Path(self.request.output)).name, None)
        if found != self.expected:
            return f"the second run left {sorted(found)}, not the same bytes as the first"
        if events and (resumed < n_reported or resumed + n_done != n_tensors):
            return f"{n_reported} tensors were reported and {resumed} taken over"
        return ""

    def _found(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(self.request.output).parent.iterdir()}


def killed(trial: Trial, after_s: float, n_events: int = 0) -> str:
    """Kill a run `after_s` seconds after it said `n_events` things; what is wrong then, or nothing."""
    with subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(trial.asked)
        job.stdin.flush()
        lines = [job.stdout.readline() for _ in range(n_events)]
        time.sleep(after_s)
        job.kill()
        lines += [line for line in job.stdout if line.endswith(b"\n")]
    return trial.fault(sum(isinstance(decode_event(json.loads(line)), TensorWritten) for line in lines))


def cut_short(trial: Trial, n_bytes: int) -> str:
    """Run where no file may grow beyond `n_bytes`; what is wrong then, or nothing. Not on Windows."""
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({n_bytes}, r.getrlimit(r.RLIMIT_FSIZE)[1]))"
    command = [sys.executable, "-P", "-c", f"{limited}; from quantizer.write.job import main; raise SystemExit(main())"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(trial.asked)
        job.stdin.flush()
        last = decode_event(json.loads(job.stdout.readlines()[-1]))
    if not isinstance(last, JobFailed) or last.error.kind != "StorageError":
        return f"the full disk was reported as {last}"
    if left := sorted(path.name for path in Path(trial.request.output).parent.iterdir()):
        return f"the full disk left {left}"
    return trial.fault(0)


def _tell(what: str, faults: list[str], n_trials: int) -> int:
    print(f"{what}: {n_trials - len(faults)} of {n_trials} as they should be", flush=True)
    for fault in faults:
        print(f"  {fault}")
    return len(faults)


def _faults(trials: list[float], attempt: Callable[[float], str]) -> list[str]:
    return [f"{at}: {fault}" for at in trials if (fault := attempt(at))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--offsets", type=int, default=50)
    parser.add_argument("--shard-size", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        request = JobRequest(str(options.model), options.type, str(Path(folder, "m.gguf")), 2, is_overwriting=False)
        request = dataclasses.replace(request, max_shard_bytes=options.shard_size)
        try:
            trial = Trial.of(request)
        except UserError as error:
            parser.error(str(error))
        print(f"undisturbed: {trial.elapsed_s:.2f} s, {sum(map(len, trial.expected.values())):,} bytes", flush=True)
        moments = [chance.uniform(0, trial.elapsed_s) for _ in range(options.kills)]
        largest = max(map(len, trial.expected.values()))
        offsets = [float(largest * i // options.offsets) for i in range(options.offsets)]
        n_faulty = _tell("kill -9", _faults(moments, lambda at: killed(trial, at)), options.kills)
        n_faulty += _tell("disk full", _faults(offsets, lambda at: cut_short(trial, int(at))), options.offsets)
    finish(options.kills + options.offsets, n_faulty, options.seed)


if __name__ == "__main__":
    main()
