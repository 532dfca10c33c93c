"""The budget of a model's reasoning for the engine: its tags, what ends it, and in how many tokens. Pure.

Owns the text that ends the reasoning of each family in a way that the model understands. `thinking` says how much is
wanted, `app.engine.loop.thought` where reasoning is cut.
"""

from __future__ import annotations

from app.common.answer_text import ReasoningTags
from app.engine.request import ReasoningBudget
from app.service.generation.harmony import HARMONY_BOUNDS
from app.service.generation.thinking import Thinking

# What Qwen's models are given (source: "Thinking budget" in Qwen's documentation, and arXiv 2505.09388, 4.6).
_QWEN_CONCLUSION = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
)
_QWEN_MARKS = ("<|im_start|>", "<think>")


def reasoning_budget(
    tags: ReasoningTags, chat_template: str, thinking: Thinking, *, may_call: bool = False
) -> ReasoningBudget | None:
    """Return the budget of an answer with `tags`, None for a model that does not reason, or no more.

    A model that `may_call` tools chooses itself between a call and text, once.
    """
    if not tags.opening or tags.is_past:
        return None
    conclusion = thinking.conclusion
    if conclusion is None:
        conclusion = _QWEN_CONCLUSION if all(mark in chat_template for mark in _QWEN_MARKS) else ""
    to_text = tags.closing + tags.before_text
    return ReasoningBudget(
        opening=tags.opening,
        closings=HARMONY_BOUNDS if tags.has_channels else (tags.closing, *tags.stops),
        ending=_on_own_line(tags.closing if may_call else to_text, chat_template),
        last_ending=to_text if tags.before_text else "",
        conclusion=conclusion,
        is_open=tags.is_open,
        recurs=tags.recurs or tags.has_channels,
        max_tokens=thinking.n_most_tokens(chat_template),
    )


def _on_own_line(closing: str, chat_template: str) -> str:
    """Return `closing` behind a line end where the template writes one before it."""
    return f"\n{closing}" if f"\\n{closing}" in chat_template or f"\n{closing}" in chat_template else closing
