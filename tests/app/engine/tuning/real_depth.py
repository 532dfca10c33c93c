"""Says how a step's logits change where copies of a sequence are laid over it; run as a child.

Usage: python real_depth.py MODEL.gguf; prints JSON {"plain": [...], "fused": [...]}, the largest differences from the
logits before: of the same step computed again, of one below the overlay, and of that one again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

BEGIN, NEXT = list(range(10, 42)), 7


def differences(backend: LlamaBackend) -> list[float]:
    backend.decode([Chunk(0, 0, BEGIN, 1)])
    seed = backend.save_state(0)
    assert backend.restore_state(1, seed)

    def step(*others: int) -> np.ndarray:
        backend.truncate(0, 0)
        assert backend.restore_state(0, seed)
        for other_id in others:
            backend.overlay(other_id, 0)
        backend.decode([Chunk(0, len(BEGIN), [NEXT], 1)])
        return backend.logits(0)

    first, again = step(), step()
    over, over_again = step(1), step(1)
    return [float(abs(one - other).max()) for one, other in ((again, first), (over, first), (over_again, over))]


def main() -> None:
    loaded = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    found = {}
    for name, is_fused in (("plain", False), ("fused", True)):
        backend = loaded.context(EngineConfig(n_ctx=256, n_sequences=2), RuntimeSettings(1, is_fused, False))
        found[name] = differences(backend)
        backend.close()
    loaded.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
