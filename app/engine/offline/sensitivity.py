"""The sensitivity of tensors: how far a model diverges from itself when one of them has a coarser type.

Owns the request, the cache of results (a file for each model, matrix and text) and the process, which is `python -m
app.engine.offline.sensitivity` with a SensitivityRequest on stdin. It overwrites one tensor after the other with its
quantized values and lets the model read a text. Independent of what the results are used for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend
from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.evaluation import Floats, Logits, divergence, log_softmax
from app.engine.offline.scoring_model import Window, cached_results, load_scoring_model, predictions, windows
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


# Spread over the text, which turns from prose to code to other languages. Of the guide's 29 tensors, 75 % got the same
# type from another text with one window of 256 tokens, 72 % with 16 in a row, 89 % with 16 that are spread.
MIN_WINDOWS = 16
_MIN_CTX = 32  # tokens of a window: 16 such cost as much as the two of 256 that were read before
_BUDGET_S = 1200.0  # for reading the windows once for each tensor
_MAX_REFERENCE_BYTES = 256 << 20  # of predictions to compare with
_KEPT_BYTES = 8  # of a token in them: its id and its logit


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How much is read for each tensor: `n_windows` of `n_ctx` tokens. The predictions to compare with keep the
    `n_kept` likeliest tokens; the others are one event."""

    n_ctx: int
    n_windows: int
    n_kept: int


def reading_plan(
    n_tokens: int,
    n_ctx: int,
    n_vocab: int,
    n_affordable: float,
    max_bytes: int = _MAX_REFERENCE_BYTES,
) -> ReadingPlan:
    """Return how to read a text of `n_tokens` when there is time for `n_affordable` of them a tensor.

    Windows are of `n_ctx` tokens, or of a half, a quarter … of it where the text or the time is too short for
    MIN_WINDOWS of these. What time is left gives more windows. A large vocabulary never costs a window.
    """
    lengths = [n_ctx]
    while lengths[-1] // 2 >= _MIN_CTX:
        lengths.append(lengths[-1] // 2)
    n_read = min(n_tokens, n_affordable)
    length = next((length for length in lengths if length * MIN_WINDOWS <= n_read), lengths[-1])
    n_windows = max(1, min(n_tokens // length, max(MIN_WINDOWS, int(n_read // length))))
    n_predictions = n_windows * max(1, length - length // 2 - 1)
    return ReadingPlan(length, n_windows, max(1, min(n_vocab, max_bytes // (_KEPT_BYTES * n_predictions))))


@dataclass(frozen=True, slots=True)
class SensitivityRequest:
    """The path of a validated model, which reads `text` in windows of at most `n_ctx` tokens. `imatrix` is the path of
    the matrix that its tensors are quantized with."""

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
        n_vocab = model.backend.facts.n_vocab
        window = windows(tokens, request.n_ctx, model.begin, 1)[0]
        references = _references(model.backend, window, n_vocab)  # not timed: it finds the weights and pages them in
        started_s = time.perf_counter()
        _divergences(model.backend, window, references)
        seconds_per_token = (time.perf_counter() - started_s) / request.n_ctx
        found, kinds = weights.found(), [tensor_type_named(name) for name in PROBES]
        probes = [
            _Probe(tensor, kind, matrix)
            for tensor in tensors.values()
            if (kind := next((kind for kind in kinds if kind.fits(tensor.shape[0])), None)) and tensor.name in found
        ]
        n_affordable = _BUDGET_S / (seconds_per_token * max(1, len(probes)))
        plan = reading_plan(len(tokens), request.n_ctx, n_vocab, n_affordable)
        whole = windows(tokens, plan.n_ctx, model.begin)
        todo = [whole[at * len(whole) // plan.n_windows] for at in range(plan.n_windows)]
        unchanged = [_references(model.backend, window, plan.n_kept) for window in todo]
        for index, probe in enumerate(probes):
            divergences = []
            probe.perturb(weights, n_threads)
            for n_read, (window, references) in enumerate(zip(todo, unchanged, strict=True)):
                divergences.append(_divergences(model.backend, window, references))
                yield TaskProgress(index * len(todo) + n_read, len(probes) * len(todo))
            probe.restore(weights)
            yield probe.sensitivity(float(np.concatenate(divergences).mean()), plan, n_threads)


@dataclass(frozen=True, slots=True)
class Reference:
    """Predictions of some consecutive tokens: the `logits` of the likeliest ones, shape (n, n_kept), whose `ids` are
    None where all are kept, and what is subtracted from logits to make them log-probabilities, shape (n, 1)."""

    ids: NDArray[np.int32] | None
    logits: Logits
    normalisers: Floats

    @classmethod
    def of(cls, logits: Logits, n_kept: int) -> Reference:
        """Keep `n_kept` tokens of each row of `logits`, shape (n, n_vocab). Raises EngineError for NaN."""
        normalisers = logits[:, :1] - log_softmax(logits)[:, :1]
        n_vocab = logits.shape[1]
        if n_kept >= n_vocab:
            return cls(None, logits, normalisers)
        ids = np.argpartition(logits, n_vocab - n_kept, axis=1)[:, n_vocab - n_kept :].astype(np.int32)
        return cls(ids, np.take_along_axis(logits, ids, axis=1), normalisers)

    def divergences(self, logits: Logits) -> Floats:
        """Return KL(reference || model) of each row, the tokens that are not kept as one event: less than the whole
        divergence by what they diverge among themselves. Raises EngineError for NaN."""
        log_q, log_p = self.logits - self.normalisers, log_softmax(logits)
        if self.ids is None:
            return divergence(log_q, log_p)
        log_p = np.take_along_axis(log_p, self.ids, axis=1)
        others = (np.maximum(1e-12, 1 - np.exp(logs).sum(axis=1, keepdims=True)) for logs in (log_q, log_p))
        q, p = (np.hstack([logs, np.log(other)]) for logs, other in zip((log_q, log_p), others, strict=True))
        return divergence(q, p)


def _references(backend: Backend, window: Window, n_kept: int) -> list[Reference]:
    return [Reference.of(scored.logits[0], n_kept) for scored in predictions([backend], window)]


def _divergences(backend: Backend, window: Window, references: list[Reference]) -> Floats:
    pairs = zip(references, predictions([backend], window), strict=True)
    return np.concatenate([reference.divergences(scored.logits[0]) for reference, scored in pairs])


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

    def sensitivity(self, kld: float, plan: ReadingPlan, n_threads: int) -> Sensitivity:
        tensor, columns = self.tensor, self.column_weights
        kinds = candidates(tensor.shape[0], tensor.stored, has_weights=columns is not None)
        errors = distortions(tensor, kinds, columns, n_threads)
        by_type = {kind.name: distortion for kind, distortion in zip(kinds, errors, strict=True)}
        return Sensitivity(tensor.name, self.kind.name, kld, by_type, plan.n_windows, plan.n_ctx)


if __name__ == "__main__":
    sys.exit(serve_task(SensitivityRequest, measure))
