"""The table of all classes: does each convert, as llama.cpp's converter does, quantize, answer, and fit its plan.

    uv run --group train python tests/bench/conversion/class_table.py FOLDER [NAME ...]
        [--peer convert_hf_to_gguf.py] [--json]

For each entry of tiny_checkpoints.py FOLDER gets a checkpoint and what is made of it. A cell says `ok`, or `ok:` with
what is told apart and explained, or what is wrong, for which the script exits with 1. Each row, each file, each answer
and the peer have a process of their own, so that a crash is one cell. The peer needs protobuf for SentencePiece;
without one the table has only the differences, and the largest of each of llama.cpp's architectures.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from app.engine import messages
from app.engine.messages import EngineConfig
from app.engine.request import Request, SamplingParams
from quantizer.architectures import find_architecture
from quantizer.convert.checkpoint_source import config_header
from quantizer.gguf.file_names import PROJECTOR_TYPES
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES
from quantizer.system.process import python_command
from quantizer.write.events import JobWarning
from quantizer.write.job import JobRequest, run_job
from tests.bench.conversion import compare_embeddings, compare_logits, compare_projections
from tests.bench.conversion.class_rows import (
    BLOCKS,
    Cell,
    Row,
    attempted,
    difference_cell,
    exit_code,
    peer_cell,
    plan_cell,
    projector_cell,
    refusal_cell,
    table,
    types_cell,
    worst_table,
)
from tests.bench.conversion.compare_files import compare_files
from tests.bench.models.tiny_checkpoints import CHECKPOINTS, ENCODERS, write
from tests.offload.footprint_figures import Figures, Run, predicted

_Result = TypeVar("_Result")

N_TOKENS = 8
_PROMPT = (72, 101, 108, 108, 111)
_N_CTX = 256
_PEER_SCRIPT = Path(__file__).with_name("convert_with_peer.py")
_NO_CONVERSION = {"change": "", "error": "their converter ended before this one"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One entry of tiny_checkpoints.py, and what is made of it in `folder`."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "checkpoints" / self.name

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return settings

    @property
    def sees(self) -> bool:
        return (self.path / "preprocessor_config.json").exists()

    def file(self, type_name: str) -> Path:
        return self.folder / "ours" / f"{self.name}-{type_name}.gguf"

    def write(self) -> Cell:
        """Write the checkpoint, unless it is there."""
        if not (self.path / "model.safetensors").exists():
            write(self.name, self.path)
        return Cell("ok")

    def projector(self, type_name: str) -> Path:
        return self.folder / "ours" / f"mmproj-{self.name}-{type_name}.gguf"

    def row(self, conversion: dict[str, str] | None, projection: dict[str, str] | None) -> Row:
        """Measure everything; `conversion` is what the peer said of it, `projection` of its projector.

        Without a peer only the difference is measured.
        """
        cells = {"difference": attempted(self._difference)}
        if conversion:
            cells["as theirs"] = attempted(partial(self._as_theirs, conversion))
            cells |= {name: attempted(partial(self._quantized, name)) for name in BLOCKS}
            cells["plan"] = attempted(self._plan)
        if self.sees and projection:
            cells["projector"] = attempted(partial(self._projector, projection))
        found = self.file("F32")
        architecture = read_header(found).architecture if found.exists() else ""
        return Row(self.name, self.settings["architectures"][0], architecture, cells)

    def _difference(self) -> Cell:
        warnings = self._convert("F32")
        if self.name in ENCODERS:  # what is said of these is what localllm leaves out
            return difference_cell(compare_embeddings.compared_vectors(self.path, self.file("F32")))
        compared = compare_logits.compared_logits(self.path, self.file("F32"))
        architecture, config = find_architecture(self.settings)
        return difference_cell(compared, architecture.approximations(config), warnings)

    def _as_theirs(self, conversion: dict[str, str]) -> Cell:
        ours, theirs = self.file("F32"), self.folder / "theirs" / f"{self.name}.gguf"
        architecture = read_header(ours).architecture
        if conversion["error"]:
            return refusal_cell(architecture, conversion["error"])
        return peer_cell(architecture, conversion["change"], compare_files(ours, theirs))

    def _quantized(self, type_name: str) -> Cell:
        warnings = self._convert(type_name)
        path = self.file(type_name)
        types = (TENSOR_TYPES[tensor.type_id].name for tensor in read_header(path).tensors)
        cell = types_cell(type_name, types, warnings)
        problem = self._vector_problem(path) if self.name in ENCODERS else answer_problem(path)
        return Cell(f"{cell.text}; {problem}", False) if problem else cell

    def _vector_problem(self, path: Path) -> str:
        answer = compare_embeddings.through_engine(path, compare_embeddings.case_for(self.settings))
        numbers = answer.get("scores") or [number for vector in answer.get("vectors", ()) for number in vector]
        return "" if numbers and all(map(math.isfinite, numbers)) else f"no finite vectors: {answer.get('error', '')}"

    def _plan(self) -> Cell:
        self._convert("F16")
        planned = config_header(self.settings, self.name)
        return plan_cell(planned_bytes(planned), planned_bytes(read_header(self.file("F16"))))

    def _projector(self, conversion: dict[str, str]) -> Cell:
        """The projector in each type, and F32 against the peer's."""
        found = {}
        for type_name in PROJECTOR_TYPES:
            self._convert("F32", type_name)
            projector = self.projector(type_name)
            found[type_name] = compare_projections.largest_difference(self.path, self.file("F32"), projector)
        ours, theirs = self.projector("F32"), self.folder / "theirs" / f"mmproj-{self.name}.gguf"
        header = read_header(ours)
        kind = compare_projections.kind(header, compare_projections.encoders(header)[0])
        if conversion["error"]:
            return projector_cell(found, refusal_cell(kind, conversion["error"]))
        return projector_cell(found, peer_cell(kind, conversion["change"], compare_files(ours, theirs)))

    def _convert(self, type_name: str, projector: str = "") -> list[str]:
        """Quantize in a process of its own and return its warnings."""
        output = self.file(type_name)
        output.parent.mkdir(exist_ok=True)
        request = JobRequest(
            str(self.path), type_name, str(output), n_threads=1, is_overwriting=True, projector=projector
        )
        return [event.text for event in run_job(request) if isinstance(event, JobWarning)]


def planned_bytes(header: Header) -> dict[str, float]:
    """Bytes of all tensors, and of the caches and states of a context."""
    run = predicted(header, Figures(0, 0.0, (Run(_N_CTX, "f16", False, 0.0, 0.0, 0.0),))).runs[0]
    weights = sum(tensor.n_bytes for tensor in header.tensors)
    return {"weights": weights, "caches": run.kv_mib + run.state_mib}


def answer_problem(path: Path) -> str:
    """What is wrong with a greedy answer of the model through the engine's worker, empty for nothing."""
    config = EngineConfig(n_ctx=_N_CTX, n_threads=1, uses_gpu=False, saves_prefixes=False)
    greedy = SamplingParams(temperature=0.0)
    request = Request(request_id="a", prompt=_PROMPT, sampling=greedy, max_tokens=N_TOKENS, ignore_eos=True)
    with subprocess.Popen(
        python_command("app.engine.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(messages.encode(messages.Load(str(path), config)))
        worker.stdin.flush()
        while (frame := messages.read_message(worker.stdout.read)) is not None:
            match frame:
                case messages.Ready():
                    worker.stdin.write(messages.encode(request))
                    worker.stdin.flush()
                case messages.Failed():
                    worker.stdin.close()
                    return frame.error.cause
                case messages.Finished(usage=usage):
                    worker.stdin.close()
                    return (
                        ""
                        if usage.n_output_tokens == N_TOKENS
                        else f"answered {usage.n_output_tokens} tokens of {N_TOKENS}"
                    )
        return f"the engine ended with {worker.wait()}"


def peer_conversions(peer: Path, folder: Path, checkpoints: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Convert checkpoints into `folder` with llama.cpp's converter; what it said of each, by name."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(_PEER_SCRIPT), str(peer), str(folder), *map(str, checkpoints)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return {result["name"]: result for result in map(json.loads, done.stdout.splitlines())}


def apart(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Return what a function returns in a fork of this process: a crash there is an error here."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


def measured(folder: Path, names: Sequence[str], peer: Path | None) -> Iterator[Row]:
    """Yield the row of each checkpoint as it is done."""
    checkpoints = [Checkpoint(name, folder) for name in names]
    written = {each: attempted(partial(apart, each.write)) for each in checkpoints}
    there = [each.path for each, cell in written.items() if cell.is_ok]
    conversions = peer_conversions(peer, folder / "theirs", there) if peer else None
    for each, cell in written.items():
        row = _row(each, conversions) if cell.is_ok else _lost(each, cell)
        print(f"{each.name}: {'ok' if row.is_ok else 'FAILED'}", file=sys.stderr, flush=True)
        yield row


def _row(checkpoint: Checkpoint, conversions: dict[str, dict[str, str]] | None) -> Row:
    names = (checkpoint.name, f"mmproj-{checkpoint.name}")
    said = [None if conversions is None else conversions.get(name, _NO_CONVERSION) for name in names]
    try:
        return apart(checkpoint.row, *said)
    except BrokenExecutor as error:
        return _lost(checkpoint, Cell(str(error), False))


def _lost(checkpoint: Checkpoint, cell: Cell) -> Row:
    return Row(checkpoint.name, "", "", {"difference": cell})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*CHECKPOINTS, *ENCODERS, []], default=[])
    parser.add_argument("--peer", type=Path, help="convert_hf_to_gguf.py of the vendored llama.cpp")
    parser.add_argument("--json", action="store_true", dest="wants_json")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(exist_ok=True)
    peer = arguments.peer.resolve() if arguments.peer else None
    rows = list(measured(folder, arguments.names or [*CHECKPOINTS, *ENCODERS], peer))
    shown = f"{table(rows)}\n\n{worst_table(rows)}"
    print(json.dumps([asdict(row) for row in rows], indent=1) if arguments.wants_json else shown)
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
