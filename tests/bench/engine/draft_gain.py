"""The gain of drafts for given step costs: the edit benchmark without a model and without noise.

Run: `uv run python tests/bench/engine/draft_gain.py [--ratios 1:1,2:1.67,16:4.14,32:7.02]`. The answers of
app/bench/workloads.py go through the engine's own drafter token by token, one answer after the other, each with what
was learned of those before; a step costs a step of one token times its ratio, by default the ratios that the engine
starts with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from tokenizers import Tokenizer

from app.bench.workloads import TASKS, RandomText
from app.engine.loop.scheduler import StepBudget
from app.engine.request import FinishReason
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.drafter import Drafter
from offload.speed.step_costs import CPU_COST_RATIOS
from tests.app.engine.sequences import new_sequence

__all__ = ["gains"]

N_TOKENS = 256
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ",".join(f"{n_tokens}:{ratio}" for n_tokens, ratio in CPU_COST_RATIOS.items())
    parser.add_argument("--ratios", default=usual, help="tokens of a step : its cost in steps of one token")
    parser.add_argument("--count", type=int, default=8, help="texts of each task (8)")
    options = parser.parse_args()
    pairs = (item.split(":") for item in options.ratios.split(","))
    ratios = {int(n_tokens): float(ratio) for n_tokens, ratio in pairs}
    for name, found in gains(options.count, ratios).items():
        times, n_drafted, n_accepted = (mean(values) for values in zip(*found, strict=True))
        print(f"{name:7} {times:.2f} × plain, {n_accepted:.0f} of {n_drafted:.0f} draft tokens accepted")


if __name__ == "__main__":
    main()
