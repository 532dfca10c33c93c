"""How long a model may go on calling tools in one answer: rounds, calls that repeat, and what is said of both. Pure.

A round is an answer with calls, and their results. Whoever runs rounds asks `next_step` before each, and adds
`repeat_note` to the result of each call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from app.protocol.chat import ToolCall

N_NOTED = 3  # the same call this often in a row: the model is told
N_STOPPED = 6  # and this often: the person is asked


class StepKind(Enum):
    """What comes after the results of a round."""

    GO_ON = "go on"
    LIMIT = "limit"  # the rounds that the chat allows are used up
    REPEATING = "repeating"  # the model makes the same call again and again


@dataclass(frozen=True, slots=True)
class NextStep:
    """Whether the model answers next, or the person is asked whether it may; `text` is the question, "" to go on."""

    kind: StepKind
    text: str = ""

    @property
    def is_allowed(self) -> bool:
        return self.kind is StepKind.GO_ON


def next_step(rounds: Sequence[Sequence[ToolCall]], max_rounds: int, n_granted: int = 0) -> NextStep:
    """Return what comes after `rounds`, the calls of each round since the question.

    `n_granted` is how many of them there were when the person last let the model go on, 0 if they were not asked: it
    may then use `max_rounds` more.
    """
    calls = [call for made in rounds for call in made]
    granted = sum(map(len, rounds[:n_granted]))
    n_repeats = n_in_a_row(calls[granted:])
    if n_repeats >= N_STOPPED:
        cause = f"The model made the same call of {calls[-1].name} {n_repeats} times in a row."
        return NextStep(StepKind.REPEATING, f"{cause} Let it go on?")
    n_rounds = len(rounds) - n_granted
    if n_rounds >= max_rounds:
        return NextStep(StepKind.LIMIT, f"The model has called tools in {len(rounds)} rounds. Let it go on?")
    return NextStep(StepKind.GO_ON)


def n_in_a_row(calls: Sequence[ToolCall]) -> int:
    """Return how often the last of `calls` was made in a row: the same tool with equal arguments."""
    if not calls:
        return 0
    last, n_equal = _identity(calls[-1]), 0
    for call in reversed(calls):
        if _identity(call) != last:
            break
        n_equal += 1
    return n_equal


def repeat_note(calls: Sequence[ToolCall]) -> str:
    """Return what the model is told after the result of the last of `calls`, "" unless it repeats itself."""
    n_repeats = n_in_a_row(calls)
    if n_repeats < N_NOTED:
        return ""
    return (
        f"[You have made this same call {n_repeats} times in a row. Making it again will not help: use what it "
        "returned, try something else, or say what is missing.]"
    )


def _identity(call: ToolCall) -> tuple[str, str]:
    """Return what equal calls have in common: spaces and the order of keys make no difference."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments
