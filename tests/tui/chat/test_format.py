"""The words below an answer, and the advice about a model that does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.branches import TranscriptEntry
from app.chat.conversation import Message, MessageState
from quantizer.system.errors import EngineError
from tests.tui.plans import split_plan
from tui.chat.format import advice, answer_line

STATS = {
    "decode_tokens_per_s": 12.3,
    "time_to_first_token_s": 0.31,
    "n_output_tokens": 214,
    "n_prompt_tokens": 1200,
    "n_cached_tokens": 900,
    "n_drafted_tokens": 20,
    "n_accepted_tokens": 15,
}
ANSWER = Message(id=1, parent_id=None, role="assistant", content="Yes.", model="guide", stats=STATS)
LONG_NAME = "smollm2:135m-instruct.q4_1-iq4_XS"
SHOWN = "12 tokens a second · first word after 0.3 s · 214 tokens"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (TranscriptEntry(message=ANSWER), f"guide · {SHOWN}"),
        (TranscriptEntry(message=ANSWER, names_model=False), SHOWN),
        (
            TranscriptEntry(message=ANSWER, has_figures=True),
            f"guide · {SHOWN} · 1,200 read (75% cached) · drafts 15 of 20",
        ),
        (TranscriptEntry(message=ANSWER, is_running=True), "guide"),
        (TranscriptEntry(message=replace(ANSWER, model=LONG_NAME), is_running=True), LONG_NAME),
        (TranscriptEntry(message=ANSWER, is_running=True, names_model=False), ""),
        (TranscriptEntry(message=replace(ANSWER, state=MessageState.PARTIAL, stats={})), "guide · stopped"),
        (TranscriptEntry(message=replace(ANSWER, stats={"finish_reason": "length"})), "guide · token limit reached"),
        (TranscriptEntry(message=ANSWER, error=EngineError("It died.", "")), f"guide · incomplete · {SHOWN}"),
        (TranscriptEntry(message=replace(ANSWER, content="", stats={})), "guide · The model wrote nothing."),
        # of an imported chat
        (
            TranscriptEntry(message=replace(ANSWER, stats={"decode_tokens_per_s": "fast", "n_output_tokens": -1})),
            "guide",
        ),
    ],
)
def test_the_line_below_an_answer(entry: TranscriptEntry, line: str) -> None:
    assert answer_line(entry) == line


PARTIAL = split_plan(
    "partial",
    20,
    33,
    "13 of 33 layers are read from the processor's memory at 45 GB/s.",
    "quantize to Q4_K_M (4.6 GiB)",
)


def test_a_model_that_lies_partly_in_slow_memory_is_advised() -> None:
    assert advice(PARTIAL) == (
        "13 of 33 layers are read from the processor's memory at 45 GB/s."
        " Suggestion: quantize to Q4_K_M (4.6 GiB). F7 shows the plan and applies it."
    )
    assert advice(split_plan("fits", 33, 33)) == advice(None) == ""
