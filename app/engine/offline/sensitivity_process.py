"""The process that measures how sensitive tensors are: `python -m app.engine.offline.sensitivity_process`, a request on
stdin.

One tensor after the other is written over with what a coarser type makes of it, and the model reads a text: how far it
strays from itself is what the tensor is worth. Says a line for each window that is read, and one for each tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from app.engine.backend import Backend
from app.engine.llama import WritableWeights
from app.engine.model_task import Line, TaskProgress, progress, result, serve
from app.engine.offline.eval_statistics import EvalAccumulator
from app.engine.offline.scoring_model import ScoringModel, Window, load_scoring_model, predictions, windows
from app.engine.offline.sensitivity import SensitivityRequest
from offload.devices.cpu import default_threads
from quantizer.convert.gguf_source import open_gguf
from quantizer.convert.source_model import SourceTensor
from quantizer.gguf.header_encoder import OutputTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.mix.imatrix import ColumnWeights, ImportanceMatrix, read_imatrix
from quantizer.mix.sensitivity import PROBES, Sensitivity, candidates, distortions
from quantizer.mix.tensor_categories import allows_quantization
from quantizer.write.dtype_conversion import encode, to_float32
from quantizer.write.pipeline import PlannedTensor, converted

__all__ = ["measure"]

_MAX_REFERENCE_BYTES = 128 << 20  # logits to compare with: of a large vocabulary they fill that in fewer windows
_LOGIT_BYTES = 4
_MAX_WINDOWS = 16


def measure(request: SensitivityRequest) -> Iterator[Line]:
    """Yield a step for each window that is read and a result for each tensor that was measured. Raises UserError."""
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
        text = _Text(model.backend, _windows(model, request))
        found = weights.found()
        probes = [_Probe(tensor, kind, matrix) for tensor in tensors.values() if (kind := _probe_type(tensor))]
        yield from _measured([probe for probe in probes if probe.tensor.name in found], text, weights, n_threads)


class _Text:
    """Windows of a text, and what the model as it is predicts for them."""

    def __init__(self, backend: Backend, todo: Sequence[Window]) -> None:
        self._backend = backend
        self._windows = todo
        self._references = [list(predictions([backend], window)) for window in todo]

    def __len__(self) -> int:
        return len(self._windows)

    def read(self, tally: EvalAccumulator) -> Iterator[None]:
        """Let the model as it is now read window by window, and put into `tally` how far it strays."""
        for window, references in zip(self._windows, self._references, strict=True):
            for scored, reference in zip(predictions([self._backend], window), references, strict=True):
                tally.add(scored.targets, scored.logits[0], reference.logits[0])
            yield


@dataclass(frozen=True, slots=True)
class _Probe:
    """A tensor, and the type that it is bent into to be measured."""

    tensor: SourceTensor
    kind: TensorType
    matrix: ImportanceMatrix

    @property
    def column_weights(self) -> ColumnWeights | None:
        return self.matrix.weights(self.tensor.name, self.tensor.shape)

    def bend(self, weights: WritableWeights, n_threads: int) -> None:
        """Let the loaded tensor hold what `kind` makes of it."""
        tensor, start = self.tensor, 0
        output = OutputTensor(tensor.name, tensor.shape, self.kind)
        for slab in converted([PlannedTensor(tensor, output, self.column_weights)], n_threads):
            rows = to_float32(slab.data, self.kind, tensor.shape[0])
            data = encode(rows, tensor.stored, tensor.name)
            weights.write(tensor.name, start, data)
            start += len(data)

    def straighten(self, weights: WritableWeights) -> None:
        """Let the loaded tensor be what it was."""
        start = 0
        for data in self.tensor.slabs(self.tensor.shape[1]):
            weights.write(self.tensor.name, start, data)
            start += len(data)

    def sensitivity(self, kld: float, n_threads: int) -> Sensitivity:
        """Return what is known once `kld` is."""
        tensor, columns = self.tensor, self.column_weights
        kinds = candidates(tensor.shape[0], tensor.stored, has_weights=columns is not None)
        bent = distortions(tensor, kinds, columns, n_threads)
        by_type = {kind.name: distortion for kind, distortion in zip(kinds, bent, strict=True)}
        return Sensitivity(tensor.name, self.kind.name, kld, by_type)


def _measured(probes: Sequence[_Probe], text: _Text, weights: WritableWeights, n_threads: int) -> Iterator[Line]:
    for index, probe in enumerate(probes):
        tally = EvalAccumulator()
        probe.bend(weights, n_threads)
        for n_read, _ in enumerate(text.read(tally)):
            yield progress(TaskProgress(index * len(text) + n_read, len(probes) * len(text)))
        probe.straighten(weights)
        assert tally.mean_kld is not None
        yield result(probe.sensitivity(tally.mean_kld, n_threads))


def _probe_type(tensor: SourceTensor) -> TensorType | None:
    """Return the first type that the rows of `tensor` fit, None where none does."""
    kinds = [tensor_type_named(name) for name in PROBES]
    return next((kind for kind in kinds if kind.fits(tensor.shape[0])), None)


def _windows(model: ScoringModel, request: SensitivityRequest) -> list[Window]:
    """Return as many windows as there is room for what is predicted of them."""
    tokens = model.backend.tokenize(request.text, add_special=True, parse_special=False)
    n_bytes = model.backend.facts.n_vocab * _LOGIT_BYTES * (request.n_ctx // 2)
    n_windows = max(1, min(_MAX_WINDOWS, _MAX_REFERENCE_BYTES // n_bytes))
    return windows(tokens, request.n_ctx, model.begin, n_windows)


def _work(request: Line) -> Iterator[Line]:
    return measure(SensitivityRequest(**request))


if __name__ == "__main__":
    sys.exit(serve(_work))
