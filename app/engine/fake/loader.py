"""The loader of the fake model: with progress, cancellation and a refusal if it is to be unfit, as in real loading.

Independent of the process that it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from app.engine.fake.backend import FakeBackend
from app.engine.fake.embedder import FakeEmbedder
from app.engine.load.loading import LoadedEngine, LoadListener
from app.engine.protocol import messages
from app.engine.request import Adapter
from app.engine.speculative.step_cost import StepCost
from quantizer.errors import EngineError, UnfitError

__all__ = ["fake_loader"]

_N_PARTS = 10


def fake_loader(
    step_s: float, load_s: float, *, is_unfit: bool
) -> Callable[[messages.Load, LoadListener], LoadedEngine]:
    """Return a loader of fake models that takes `load_s`, with steps of `step_s`.

    The loader raises UnfitError if the model `is_unfit` and the policy is to ask, EngineError when it is cancelled.
    """

    def load(message: messages.Load, listener: LoadListener) -> LoadedEngine:
        config = message.config
        if is_unfit and config.when_unfit is messages.UnfitPolicy.ASK:
            raise UnfitError("Only 1 of 3 layers fit.", "What would help: a larger GPU.")
        for part in range(_N_PARTS):
            if not listener.on_progress(part / _N_PARTS):
                raise EngineError("Loading was stopped.", "Load the model again.")
            time.sleep(load_s / _N_PARTS)
        n_ctx = config.n_ctx or 4096
        adapters = [Adapter(name, path) for path, name in config.lora]
        backend = FakeBackend(n_ctx, 2 * n_ctx, config.n_sequences, step_s=step_s, adapters=adapters)
        return LoadedEngine(backend, FakeEmbedder, StepCost(), None, lambda _work, _ratios: None, ExitStack())

    return load
