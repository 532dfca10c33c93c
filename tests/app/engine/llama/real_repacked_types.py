"""Says which weights a model repacks when only some types are to be; run as a child.

Usage: python real_repacked_types.py MODEL.gguf TYPE; prints JSON {"all": types that are repacked, "chosen": those when
only TYPE is to be, "same": whether what is computed then is as close to the plain weights as repacking all is}.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.llama.eval_callback import Tensor
from app.engine.llama.step_weights import UsedWeights, repacked_weights
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.tensor_types import TENSOR_TYPES

CONFIG = EngineConfig(n_ctx=256, n_sequences=1)
SETTING = RuntimeSettings(1, flash_attention=False, extra_buffers=True)
PROMPT = list(range(10, 50))


def repacked(path: Path, types: tuple[str, ...], *, extra_buffers: bool = True) -> tuple[list[str], np.ndarray]:
    """Return the types of the repacked weights, and logits."""
    found = UsedWeights()
    loaded = LlamaModel(path, ON_HOST, extra_buffers, lambda _fraction: True, repacked_types=types)
    with closing(loaded) as model, closing(model.context(CONFIG, SETTING, found)) as backend:
        backend.decode([Chunk(0, 0, PROMPT, 1)])
        names = {
            TENSOR_TYPES[Tensor.from_address(address).type].name
            for address in found.addresses(repacked_weights(range(64)))
        }
        return sorted(names), backend.logits(len(PROMPT) - 1)


def main() -> None:
    path, name = Path(sys.argv[1]), sys.argv[2]
    _, plain = repacked(path, (), extra_buffers=False)
    every, whole = repacked(path, ())
    chosen, part = repacked(path, (name,))
    spread = float(np.std(plain))
    is_near = [bool(np.abs(each - plain).max() < 0.2 * spread) for each in (whole, part)]
    print(json.dumps({"all": every, "chosen": chosen, "near": is_near}))


if __name__ == "__main__":
    main()
