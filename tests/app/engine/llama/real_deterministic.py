"""Asks a model the same questions again and again, beside others and after others; run as a child, for native code may
end its process.

Usage: python real_deterministic.py MODEL.gguf; prints JSON {"usual": {QUESTION: n}, "deterministic": {QUESTION: n},
"n_cached"}: in how many ways the log probabilities of an answer's tokens and their alternatives came out.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from app.engine.cache.deterministic_cache import DETERMINISTIC_STEP
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

N_CTX, N_ANSWER, N_TIMES = 1024, 10, 4
TEXT = "How do I load a model that is larger than the memory of the graphics card, and how fast is it then? "
QUESTIONS = {"short": TEXT, "long": 8 * TEXT, "longer": 8 * TEXT + "And on two cards? " * 3}


def request(name: str, prompt: str, *, is_deterministic: bool) -> Request:
    return Request(
        request_id=name,
        prompt=prompt,
        max_tokens=N_ANSWER,
        sampling=SamplingParams(temperature=0.0),
        ignore_eos=True,
        n_logprobs=5,
        is_deterministic=is_deterministic,
    )


class Scores:
    """The log probabilities of an answer's tokens and of their alternatives, by request, and the tokens reused."""

    def __init__(self) -> None:
        self._found: dict[str, list[object]] = {}
        self.n_cached = 0

    def __call__(self, event: Output | Finished | Failed) -> None:
        assert not isinstance(event, Failed), event
        if isinstance(event, Output):
            tops = [[found.logprob, *((token, logprob) for token, _, logprob in found.top)] for found in event.logprobs]
            self._found.setdefault(event.request_id, []).extend(tops)
        elif event.request_id.startswith("deterministic"):
            self.n_cached += event.usage.n_cached_tokens

    def n_ways(self, kind: str, name: str) -> int:
        return len({json.dumps(self._found[f"{kind} {name} {number}"]) for number in range(N_TIMES)})


def play(usual: LlamaBackend, own: LlamaBackend, scores: Scores) -> None:
    """Ask all questions in both ways, in turns and beside others, while the number of threads changes."""
    chance = random.Random(3)
    engines = {"usual": Engine(usual, scores), "deterministic": Engine(own, scores, is_deterministic=True)}
    wanted = [(name, number) for name in QUESTIONS for number in range(N_TIMES)]
    chance.shuffle(wanted)
    for name, number in wanted:
        for kind, engine in engines.items():
            is_deterministic = kind == "deterministic"
            engine.submit(request(f"{kind} {name} {number}", QUESTIONS[name], is_deterministic=is_deterministic))
        for other in range(chance.randint(0, 2)):
            text = TEXT[chance.randint(0, 40) :] * chance.randint(1, 4)
            engines["usual"].submit(request(f"other {name} {number} {other}", text, is_deterministic=False))
        own.set_threads(chance.randint(1, 2))
        for _ in range(chance.randint(1, 30)):
            for engine in engines.values():
                engine.step()
    while not all(engine.is_idle for engine in engines.values()):
        for engine in engines.values():
            engine.step()
    for engine in engines.values():
        engine.close()


def main() -> None:
    scores = Scores()
    with closing(LlamaModel(Path(sys.argv[1]), ON_HOST, True, lambda _fraction: True)) as model:
        setting = RuntimeSettings(1, flash_attention=False, extra_buffers=True)
        size = EngineConfig(n_ctx=N_CTX, n_cells=N_CTX, n_sequences=1, n_batch=DETERMINISTIC_STEP)
        usual = model.context(EngineConfig(n_ctx=N_CTX, n_cells=4 * N_CTX, n_sequences=8), setting)
        own = model.context(size, replace(setting, n_ubatch=DETERMINISTIC_STEP))
        with closing(usual), closing(own):
            play(usual, own, scores)
    found: dict[str, object] = {
        kind: {name: scores.n_ways(kind, name) for name in QUESTIONS} for kind in ("usual", "deterministic")
    }
    print(json.dumps(found | {"n_cached": scores.n_cached}))


if __name__ == "__main__":
    main()
