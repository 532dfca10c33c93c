"""The gain of drafts for given step costs: the edit benchmark without a model and without noise.

Run: `uv run python tests/bench/engine/draft_gain.py [--ratios 1:1,2:1.67,16:4.14,32:7.02]`. The answers of
app/bench/workloads.py go through the engine's own drafter token by token, one answer after the other, each with what
was learned of those before; a step costs a step of one token times its ratio, by default the ratios that the engine
starts with. `--record MODEL` first keeps in the file of `--answers` what that model answers at temperature 0 to the
chats of tests/bench/peer/categories.py; with `--answers` alone those go through the drafter, by category.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import TypedDict

from tokenizers import Tokenizer

from app.bench.workloads import TASKS, RandomText
from app.engine.loop.scheduler import StepBudget
from app.engine.request import FinishReason
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.drafter import Drafter
from offload.speed.step_costs import CPU_COST_RATIOS
from tests.app.engine.sequences import new_sequence
from tests.bench.peer.categories import OWN_SAMPLES
from tests.bench.served import Served, free_port, serve

__all__ = ["gains"]

N_TOKENS = 256
N_RECORDED = 192  # of an answer to a chat
TOKENIZER = Path(__file__).parents[3] / "assets/guide/tokenizer.json"


def gain(prompt: list[int], answer: list[int], ratios: dict[int, float], drafter: Drafter) -> tuple[float, int, int]:
    """Return how many times faster than without drafts `answer` is, and how many tokens were drafted and accepted."""
    cost = StepCost(dict(ratios))
    sequence = new_sequence(prompt, answer[:1], drafter.new_acceptance(), limit=len(prompt) + len(answer))
    spent = 1.0
    while sequence.n_output < len(answer):
        sequence.n_computed = len(sequence.tokens) - 1
        drafter.assign([sequence], StepBudget(512, 128))
        draft = sequence.draft.tokens
        spent += cost.ratio(1 + len(draft))
        rest = answer[sequence.n_output :]
        n_accepted = next(
            (i for i, (one, other) in enumerate(zip(draft, rest, strict=False)) if one != other), len(draft)
        )
        for token in rest[: n_accepted + 1]:
            drafter.observe_sample(sequence, token)
            sequence.append(token)
        if draft:
            drafter.record_outcome(sequence, len(draft), n_accepted)
    sequence.finish_reason = FinishReason.LENGTH
    drafter.release(sequence)
    return len(answer) / spent, sequence.drafting.n_drafted, sequence.drafting.n_accepted


def gains(n_texts: int, ratios: dict[int, float]) -> dict[str, list[tuple[float, int, int]]]:
    """Return the gain of each of `n_texts` of each task, all with one drafter in turns."""
    tokenizer, drafter = Tokenizer.from_file(str(TOKENIZER)), Drafter(StepCost(dict(ratios)), [], lambda: 0.0)
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in TASKS}
    for seed in range(n_texts):
        prose = RandomText(seed)
        for name, make in TASKS.items():
            task = make(prose)
            prompt, answer = (tokenizer.encode(text).ids for text in (task.prompt, task.answer))
            found[name].append(gain(prompt, answer[:N_TOKENS], ratios, drafter))
    return found


class Answer(TypedDict):
    """What a model was asked and answered, in its own tokens."""

    category: str
    prompt: list[int]
    answer: list[int]


def recorded(served: Served) -> list[Answer]:
    """Return what the model of `served` answers at temperature 0."""
    found: list[Answer] = []
    for sample in OWN_SAMPLES:
        messages: list[dict[str, str]] = []
        for turn in sample.turns:
            messages.append({"role": "user", "content": turn})
            prompt = served.http.post("/apply-template", json={"messages": messages}).json()["prompt"]
            body = {"messages": messages, "temperature": 0, "max_tokens": N_RECORDED}
            text = served.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": text})
            asked, answered = (
                served.http.post("/tokenize", json={"content": content, "parse_special": True}).json()["tokens"]
                for content in (prompt, text)
            )
            found.append(Answer(category=sample.category, prompt=asked, answer=answered))
    return found


def gains_of(answers: list[Answer], ratios: dict[int, float]) -> dict[str, list[tuple[float, int, int]]]:
    """Return the gain of each answer by category, all with one drafter in turns."""
    drafter = Drafter(StepCost(dict(ratios)), [], lambda: 0.0)
    found: dict[str, list[tuple[float, int, int]]] = {}
    for each in answers:
        if each["answer"]:
            found.setdefault(each["category"], []).append(gain(each["prompt"], each["answer"], ratios, drafter))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ",".join(f"{n_tokens}:{ratio}" for n_tokens, ratio in CPU_COST_RATIOS.items())
    parser.add_argument("--ratios", default=usual, help="tokens of a step : its cost in steps of one token")
    parser.add_argument("--count", type=int, default=8, help="texts of each task (8)")
    parser.add_argument("--answers", type=Path, help="a file of recorded answers, instead of edits")
    parser.add_argument("--record", type=Path, metavar="MODEL", help="whose answers that file gets first")
    options = parser.parse_args()
    if options.record:
        with serve(options.record, free_port()) as served:
            options.answers.write_text(json.dumps(recorded(served)))
    pairs = (item.split(":") for item in options.ratios.split(","))
    ratios = {int(n_tokens): float(ratio) for n_tokens, ratio in pairs}
    found_of = (
        gains_of(json.loads(options.answers.read_text()), ratios) if options.answers else gains(options.count, ratios)
    )
    for name, found in found_of.items():
        times, n_drafted, n_accepted = (mean(values) for values in zip(*found, strict=True))
        print(f"{name:13} {times:.2f} × plain, {n_accepted:.0f} of {n_drafted:.0f} draft tokens accepted")


if __name__ == "__main__":
    main()
