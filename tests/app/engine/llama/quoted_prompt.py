"""Tokenizes a prompt with a quoted part by a real vocabulary; run as a child.

Usage: python quoted_prompt.py MODEL.gguf < JSON [prompt, [[begin, end], ...]]; prints JSON [[token, text], ...].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.engine.llama import LlamaModel
from app.engine.messages import EngineConfig
from app.engine.quoted import quoted_tokens
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST


def main() -> None:
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=64, n_sequences=1), RuntimeSettings(1, False, False))
    prompt, spans = json.load(sys.stdin)
    tokens = quoted_tokens(prompt, tuple(map(tuple, spans)), True, backend)
    print(json.dumps([[token, backend.label(token).decode("utf-8", "replace")] for token in tokens]))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
