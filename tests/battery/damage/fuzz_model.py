"""Damages a model file in many ways and takes each mutant through every reader, quantize and load, as a person would.

    uv run python tests/battery/damage/fuzz_model.py assets/guide/guide-Q8_0.gguf [--truncations 100] [--mutations 200]
        [--first 0] [--count 300] [--read-only] [--seed 1]

Each mutant must be refused with a typed error by all readers, or accepted by all and survive; a process of ours that
dies, or an error of another kind, fails the run. Seeded, so a failure can be looked at again.
"""

from __future__ import annotations

import argparse
import collections
import random
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from app.engine import messages
from app.engine.messages import EngineConfig
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import EngineError, UserError
from quantizer.system.process import python_command
from quantizer.write.job import JobRequest, run_job
from tests.battery.damage.gguf_readers import GgufReaders, disagreement
from tests.battery.tally import finish

_DISAGREED = "the readers disagree"
HEADER_SHARE = 0.8  # of mutations that hit the header, where the structure is


def mutants(data: bytes, n_truncations: int, n_mutations: int, n_header: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (what was done, bytes) of every mutant."""
    chance = random.Random(seed)
    for _ in range(n_truncations):
        cut = chance.randrange(len(data))
        yield f"cut at {cut}", data[:cut]
    for _ in range(n_mutations):
        at = chance.randrange(n_header if chance.random() < HEADER_SHARE else len(data))
        kind = chance.choice(("flip", "byte", "word"))
        mutant = bytearray(data)
        if kind == "flip":
            mutant[at] ^= 1 << chance.randrange(8)
        elif kind == "byte":
            mutant[at] = chance.randrange(256)
        else:
            mutant[at : at + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\0\0\0\x80"))
        yield f"{kind} at {at}", bytes(mutant[: len(data)])


def outcome(path: Path, readers: GgufReaders, *, is_read_only: bool = False) -> str:
    """Return what became of a mutant. Anything but these outcomes escapes as an error."""
    verdicts = readers.verdicts(path)
    if found := disagreement(verdicts):
        return f"{_DISAGREED}: {found}"
    if any(verdicts.values()):
        return "refused"
    return "accepted" if is_read_only else f"accepted, {_quantized(path)}, {_loaded(path)}"


def _quantized(path: Path) -> str:
    output = path.with_name("out.gguf")
    request = JobRequest(str(path), "Q4_K_M", str(output), n_threads=2, is_overwriting=True)
    try:
        for _ in run_job(request):
            pass
    except UserError as error:
        is_death = isinstance(error, EngineError) and error.cause.startswith("The quantizing process")
        return f"quantize died: {error}" if is_death else "quantize refused"
    return "quantized"


def _loaded(path: Path) -> str:
    with subprocess.Popen(
        python_command("app.engine.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(messages.encode(messages.Load(str(path), EngineConfig(n_ctx=256))))
        worker.stdin.flush()
        while (frame := messages.read_message(worker.stdout.read)) is not None:
            if isinstance(frame, messages.Ready):
                worker.stdin.close()
                return "loaded"
            if isinstance(frame, messages.Failed):
                return "load refused"
        return f"worker died with {worker.wait()}"


def _is_failure(result: str) -> bool:
    return "died" in result or result.startswith(_DISAGREED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--truncations", type=int, default=100)
    parser.add_argument("--mutations", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="how many to pass over (0)")
    parser.add_argument("--count", type=int, help="how many to try (all)")
    parser.add_argument("--read-only", action="store_true", help="quantize and load none")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    data = arguments.model.read_bytes()
    n_header = validate_gguf(arguments.model).data_offset
    tally: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, GgufReaders(Path(folder)) as readers:
        path = Path(folder, "mutant.gguf")
        made = mutants(data, arguments.truncations, arguments.mutations, n_header, arguments.seed)
        end = None if arguments.count is None else arguments.first + arguments.count
        for done, mutant in islice(made, arguments.first, end):
            path.write_bytes(mutant)
            result = outcome(path, readers, is_read_only=arguments.read_only)
            tally[result] += 1
            if _is_failure(result):
                print(f"{done}: {result}", flush=True)
    for result, count in tally.most_common():
        print(f"{count:5}  {result}")
    n_failed = sum(count for result, count in tally.items() if _is_failure(result))
    finish(tally.total(), n_failed, arguments.seed)


if __name__ == "__main__":
    main()
