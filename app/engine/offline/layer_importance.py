"""The importance of layers: how far each turns the hidden state of the tokens of a text.

A layer whose output points where its input does can be left out with little loss: the cosine distance of both is the
block influence of ShortGPT (arXiv 2403.03853). Owns the request and the process:
`python -m app.engine.offline.layer_importance` with a LayerRequest on stdin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.scoring_model import load_scoring_model, read_windows, windows
from quantizer.convert.layer_removal import n_layers_of
from quantizer.convert.source_model import open_gguf
from quantizer.system.errors import EngineError


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """The path of a validated model, which reads `text` in windows of `n_ctx` tokens."""

    model: str
    text: str
    n_ctx: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class LayerDistance:
    """The mean cosine distance between the input and the output of a layer: 0 where it changes no direction."""

    layer: int
    distance: float


class LayerDistances:
    def __init__(self, n_layers: int) -> None:
        self._sums = np.zeros(n_layers)
        self._counts = np.zeros(n_layers, np.int64)

    def add(self, layer: int, before: NDArray[np.float32], after: NDArray[np.float32]) -> None:
        """Count the hidden states before and after `layer`, shape (n_tokens, n_embd) each. Raises EngineError where
        they do not belong together or are not finite."""
        if before.shape != after.shape:
            raise EngineError("The layers of this model change the shape of its hidden state.", "Choose another model.")
        products, before_squares, after_squares = (
            np.einsum("te,te->t", left, right, dtype=np.float64)
            for left, right in ((before, after), (before, before), (after, after))
        )
        lengths = np.sqrt(before_squares * after_squares)
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        if not np.isfinite(lengths).all():
            raise EngineError(f"The output of layer {layer} is not finite.", "Get an undamaged copy of the model.")
        self._sums[layer] += (1 - cosines).sum()
        self._counts[layer] += len(cosines)

    def means(self) -> list[LayerDistance]:
        """Return the distance of each layer. Raises EngineError where a layer was not seen."""
        unseen = np.flatnonzero(self._counts == 0)
        if len(unseen):
            cause = f"llama.cpp does not name the output of layer {unseen[0]} of this model."
            raise EngineError(cause, "Choose another model.")
        means = self._sums / self._counts
        return [LayerDistance(layer, float(distance)) for layer, distance in enumerate(means)]


def measure_layers(
    request: LayerRequest, track: Callable[[Iterator[TaskProgress]], Iterator[TaskProgress]]
) -> list[LayerDistance]:
    """Return the distance of each layer, from a child process; `track`, leaving and errors are as in `run_task`."""
    return run_task("app.engine.offline.layer_importance", request, TaskProgress, LayerDistance, track)


def measure(request: LayerRequest) -> Iterator[TaskProgress | LayerDistance]:
    """Yield a step for each window and then each layer's distance. Raises UserError. Runs in the child."""
    from app.engine.llama import HiddenStateRecorder

    n_layers = n_layers_of(open_gguf(Path(request.model)))
    distances = LayerDistances(n_layers)
    recorder = HiddenStateRecorder(n_layers, distances.add)
    with ExitStack() as owned:
        model = load_scoring_model(Path(request.model), request.n_ctx, request.n_threads, owned, recorder)
        tokens = model.backend.tokenize(request.text, add_special=True, parse_special=False)
        todo = windows(tokens, request.n_ctx, model.begin)
        yield from read_windows(model.backend, todo, recorder.check)
    yield from distances.means()


if __name__ == "__main__":
    sys.exit(serve_task(LayerRequest, measure))
