"""How a quantized model predicts a text beside its original: `python -m tests.real.score QUANTIZED ORIGINAL`.

Native code runs in this process alone. One window: enough to tell a type's loss from a fault.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from app.cli.resources import shipped
from app.engine.offline.evaluation import EvalAccumulator
from app.engine.offline.scoring_model import load_scoring_model, predictions, windows

N_CTX = 256


def main() -> None:
    text = shipped("evaluation.txt").read_text(encoding="utf-8")
    with ExitStack() as owned:
        models = [load_scoring_model(Path(path), N_CTX, 2, owned) for path in sys.argv[1:]]
        tokens = models[0].backend.tokenize(text, add_special=True, parse_special=False)
        accumulator = EvalAccumulator()
        for window in windows(tokens, N_CTX, models[0].begin, n_windows=1):
            for block in predictions([model.backend for model in models], window):
                accumulator.add(block.targets, *block.logits)
    print(json.dumps({"perplexity": accumulator.perplexity, "kld": accumulator.mean_kld}))


if __name__ == "__main__":
    main()
