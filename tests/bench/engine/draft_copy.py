"""What a low-bit copy of a model is worth as its draft: equal greedy text, acceptance, tokens per step, and the gain.

Run: `uv run python -m tests.bench.engine.draft_copy MODEL.gguf COPY.gguf [--drafted 4] [--tokens 96]`. Both answer the
questions of tests/bench/peer/categories.py in the engine, with drafts of up to so many tokens at every step, whatever
they cost, at temperature 0 and 0.8. A greedy text may part from the one without drafts only where the two likeliest
tokens are as good as equal, for steps of other sizes round otherwise. Then the steps of both are timed, and the gain is
what these costs and the measured acceptance make expect here. Exits with 1 where a text parts elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

from rich.table import Table

from app.engine.chat_template.render import render
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.load.auxiliary_loading import load_draft_model
from app.engine.loop.core import Engine
from app.engine.loop.counters import DraftCounts
from app.engine.messages import EngineConfig
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost, best_draft_length
from app.engine.speculative.draft_model import DraftModel
from app.engine.tuning.speed_bench import measure_single_step, measure_step_cost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST, LoadParameters
from quantizer.gguf.validation import validate_gguf
from tests.app.engine.recording import Record, run
from tests.bench.peer.categories import OWN_SAMPLES
from tests.bench.report import show

TIE = 0.05  # between the logits of the two likeliest tokens
_N_CTX, _SHARE_OF_BYTES = 1024, 100.0


@dataclass(frozen=True, slots=True)
class Answers:
    record: Record
    counts: DraftCounts
    tokens_per_step: float


def answers(
    backend: LlamaBackend, draft: DraftModel | None, prompts: list[str], temperature: float, options: argparse.Namespace
) -> Answers:
    record = Record()
    # A constant clock measures no costs: each draft stays as cheap as configured.
    engine = Engine(backend, record, None, StepCost({1: 1.0, 64: 1.01}), [draft] if draft else [], clock=lambda: 0.0)
    for seed, prompt in enumerate(prompts):
        request = Request(
            request_id=str(seed),
            prompt=prompt,
            sampling=SamplingParams(temperature=temperature, seed=seed),
            max_tokens=options.tokens,
            max_draft_tokens=options.drafted if draft else 0,
            n_logprobs=2 if draft is None and not temperature else None,
        )
        run(engine, request)
    counters = engine.counters
    engine.close()
    for place in range(backend.facts.n_seq_max):
        backend.truncate(place, 0)
    counts = counters.drafts[draft.name] if draft else DraftCounts()
    return Answers(record, counts, counters.n_decode_tokens / max(1, counters.n_answer_steps))


def parted(plain: Record, drafted: Record) -> list[float]:
    """Return the margin of each greedy text where it parts from the one without drafts, in logits."""
    margins = []
    for name, tokens in plain.tokens.items():
        others = drafted.tokens[name]
        at = next((i for i, pair in enumerate(zip(tokens, others, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            (_, _, first), (_, _, second) = plain.logprobs[name][at].top
            margins.append(first - second)
    return margins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--drafted", type=int, default=4, help="tokens that a step drafts at most (4)")
    parser.add_argument("--threads", type=int, default=1, help="of both models (1)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (96)")
    options = parser.parse_args()
    header = validate_gguf(options.model)
    template = header.text("tokenizer.chat_template")
    questions = [sample.turns[0] for sample in OWN_SAMPLES]
    prompts = questions
    if template:
        chats = ([{"role": "user", "content": each}] for each in questions)
        marks = {"add_generation_prompt": True, "bos_token": "", "eos_token": ""}
        prompts = [render(template, {"messages": chat, **marks}) for chat in chats]
    setting = RuntimeSettings(options.threads, False, False)
    config = EngineConfig(n_ctx=_N_CTX, n_sequences=1, n_threads=options.threads, draft_path=str(options.copy))

    def on_host(_path: Path, _config: EngineConfig) -> LoadParameters:
        return ON_HOST

    with ExitStack() as owned:
        model = LlamaModel(options.model, ON_HOST, False, lambda _fraction: True)
        owned.callback(model.close)
        backend = model.context(config, setting)
        owned.callback(backend.close)
        facts = replace(backend.facts, model_bytes=int(_SHARE_OF_BYTES * backend.facts.model_bytes))
        free = StepCost({1: 1.0, 64: 1.01})
        draft = load_draft_model(config, setting, model, facts, free, owned, on_host)
        assert draft is not None
        made = Table(box=None, pad_edge=False)
        for name in ("temperature", "accepted", "tokens per step", "without", "equal texts"):
            made.add_column(name, justify="right")
        margins: list[float] = []
        acceptance = 0.0
        for temperature in (0.0, 0.8):
            plain = answers(backend, None, prompts, temperature, options)
            drafted = answers(backend, draft, prompts, temperature, options)
            counts = drafted.counts
            rate = counts.n_accepted / max(1, counts.n_verified)
            equal = ""
            if not temperature:
                acceptance, margins = rate, parted(plain.record, drafted.record)
                equal = f"{len(prompts) - len(margins)}/{len(prompts)}"
            figures = (f"{rate:.3f}", f"{drafted.tokens_per_step:.2f}", f"{plain.tokens_per_step:.2f}", equal)
            made.add_row(f"{temperature}", *figures)
        cost = measure_step_cost(backend, setting, {})
        copied = LlamaModel(options.copy, ON_HOST, False, lambda _fraction: True)
        owned.callback(copied.close)
        context = copied.context(config, setting)
        owned.callback(context.close)
        share = measure_single_step(context, setting) / measure_single_step(backend, setting)
    show(made)
    best = best_draft_length(repeat(acceptance, 16), cost, 1, 1, share)
    ratios = ", ".join(f"{n}: {cost.ratio(n):.2f}" for n in (1, 2, 3, 4, 8, 16))
    print(f"bytes {options.copy.stat().st_size / options.model.stat().st_size:.2f} of the model's")
    print(f"a token of the copy takes {share:.2f} of one of the model; steps of the model by tokens: {ratios}")
    print(f"expected here: {best.gain:.2f} times as fast, with {best.n_tokens} tokens")
    print(f"texts that part: {len(margins)}, at margins {[round(each, 4) for each in margins]}")
    sys.exit(any(margin > TIE for margin in margins))


if __name__ == "__main__":
    main()
