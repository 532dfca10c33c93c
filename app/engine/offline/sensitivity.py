"""The sensitivity of tensors: how far a model diverges from itself when one of them has a coarser type.

Owns the request, the cache of results (a file for each model, matrix and text) and the process, which is `python -m
app.engine.offline.sensitivity` with a SensitivityRequest on stdin. It overwrites one tensor after the other with its
quantized values and lets the model read a text. Independent of what the results are used for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.evaluation import EvalAccumulator
from app.engine.offline.scoring_model import cached_results, load_scoring_model, predictions, windows
from offload.devices.host import default_threads
from quantizer.convert.source_model import SourceTensor, open_gguf
from quantizer.gguf.header import OutputTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.mix.imatrix import ColumnWeights, ImportanceMatrix, read_imatrix
from quantizer.mix.search import PROBES, Sensitivity, candidates, distortions
from quantizer.mix.type_rules import allows_quantization
from quantizer.write.dtype_conversion import encode, to_float32
from quantizer.write.quantize import convert_tensors
from quantizer.write.quantize_plan import PlannedTensor

if TYPE_CHECKING:
    from app.engine.llama import WritableWeights


_MAX_REFERENCE_BYTES = 128 << 20  # of logits to compare with; a large vocabulary allows fewer windows
_LOGIT_BYTES = 4
_MAX_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class SensitivityRequest:
    """The path of a validated model, which reads `text` in windows of `n_ctx` tokens. `imatrix` is the path of the
    matrix that its tensors are quantized with."""

    model: str
    imatrix: str
    text: str
    n_ctx: int
    n_threads: int


def measure_sensitivities(
    request: SensitivityRequest, track: Callable[[Iterator[TaskProgress]], Iterator[TaskProgress]]
) -> dict[str, Sensitivity]:
    """Return tensor name → sensitivity, from a child process; `track`, leaving and errors are as in `run_task`."""
    results = run_task("app.engine.offline.sensitivity", request, TaskProgress, Sensitivity, track)
    return {result.name: result for result in results}


def cached_sensitivities(path: Path, measure: Callable[[], dict[str, Sensitivity]]) -> dict[str, Sensitivity]:
    """Return the content of the file at `path`; if it cannot be read, `measure` and write it."""
    results = cached_results(path, Sensitivity, lambda: list(measure().values()))
    return {result.name: result for result in results}


def measure(request: SensitivityRequest) -> Iterator[TaskProgress | Sensitivity]:
    """Yield a step for each window that is read and a result for each tensor. Raises UserError. Runs in the child."""
    from app.engine.llama import WritableWeights

    source, matrix = open_gguf(Path(request.model)), read_imatrix(Path(request.imatrix))
    tensors = {
        tensor.name: tensor
        for tensor in source.tensors
        if allows_quantization(tensor.name, tensor.shape, source.shape.architecture)
    }
    weights = WritableWeights(tensors)
    n_threads = request.n_threads or default_threads()
    with ExitStack() as owned:
        model = load_scoring_model(Path(request.model), request.n_ctx, n_threads, owned, weights, is_writable=True)
        tokens = model.backend.tokenize(request.text, add_special=True, parse_special=False)
        # As many windows as there is memory for their predictions.
        n_bytes = model.backend.facts.n_vocab * _LOGIT_BYTES * (request.n_ctx // 2)
        n_windows = max(1, min(_MAX_WINDOWS, _MAX_REFERENCE_BYTES // n_bytes))
        todo = windows(tokens, request.n_ctx, model.begin, n_windows)
        unchanged = [list(predictions([model.backend], window)) for window in todo]
        found, kinds = weights.found(), [tensor_type_named(name) for name in PROBES]
        probes = [
            _Probe(tensor, kind, matrix)
            for tensor in tensors.values()
            if (kind := next((kind for kind in kinds if kind.fits(tensor.shape[0])), None)) and tensor.name in found
        ]
        for index, probe in enumerate(probes):
            accumulator = EvalAccumulator()
            probe.perturb(weights, n_threads)
            for n_read, (window, references) in enumerate(zip(todo, unchanged, strict=True)):
                for scored, reference in zip(predictions([model.backend], window), references, strict=True):
                    accumulator.add(scored.targets, scored.logits[0], reference.logits[0])
                yield TaskProgress(index * len(todo) + n_read, len(probes) * len(todo))
            probe.restore(weights)
            assert accumulator.mean_kld is not None
            yield probe.sensitivity(accumulator.mean_kld, n_threads)


@dataclass(frozen=True, slots=True)
class _Probe:
    """A tensor, and the type that it is quantized to for its measurement."""

    tensor: SourceTensor
    kind: TensorType
    matrix: ImportanceMatrix

    @property
    def column_weights(self) -> ColumnWeights | None:
        return self.matrix.weights(self.tensor.name, self.tensor.shape)

    def perturb(self, weights: WritableWeights, n_threads: int) -> None:
        """Overwrite the loaded tensor with its values in type `kind`."""
        tensor = self.tensor
        output = OutputTensor(tensor.name, tensor.shape, self.kind)
        slabs = convert_tensors([PlannedTensor(tensor, output, self.column_weights)], n_threads)
        rows = (to_float32(slab.data, self.kind, tensor.shape[0]) for slab in slabs)
        weights.write(tensor.name, (encode(values, tensor.stored, tensor.name) for values in rows))

    def restore(self, weights: WritableWeights) -> None:
        weights.write(self.tensor.name, self.tensor.slabs(self.tensor.shape[1]))

    def sensitivity(self, kld: float, n_threads: int) -> Sensitivity:
        tensor, columns = self.tensor, self.column_weights
        kinds = candidates(tensor.shape[0], tensor.stored, has_weights=columns is not None)
        errors = distortions(tensor, kinds, columns, n_threads)
        by_type = {kind.name: distortion for kind, distortion in zip(kinds, errors, strict=True)}
        return Sensitivity(tensor.name, self.kind.name, kld, by_type)


if __name__ == "__main__":
    sys.exit(serve_task(SensitivityRequest, measure))
