"""What is below an answer, as text; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.chat.branches import Ending, TranscriptEntry, empty_answer_text
from app.chat.conversation import Scalar
from app.common.terminal import printable_line
from tui.design.words import counted, model_label, speed_words

if TYPE_CHECKING:
    from app.protocol.plan import Plan


_SEPARATOR = " · "
_ENDINGS = {
    Ending.COMPLETE: "",
    Ending.CUT: "token limit reached",
    Ending.STOPPED: "stopped",
    Ending.ELSEWHERE: "answering in another window",
    Ending.FAILED: "incomplete",
}
_FIGURES = (
    *("decode_tokens_per_s", "time_to_first_token_s", "n_output_tokens", "n_prompt_tokens", "n_cached_tokens"),
    *("n_drafted_tokens", "n_accepted_tokens"),
)
_FELT_S = 0.05  # before a first word, which is no wait below it
_MODEL_CELLS = 48


def answer_line(entry: TranscriptEntry) -> str:
    """Return the line below an answer: the model that wrote it where another one wrote before, how it ended, and how
    fast it was. An entry that `has_figures` has those of the engine too."""
    message = entry.message
    name = model_label(printable_line(message.model), _MODEL_CELLS) if entry.names_model else ""
    if entry.is_running:
        return name
    ending = empty_answer_text(entry) or _ENDINGS[entry.ending]
    figures = figures_text(message.stats, is_full=entry.has_figures)
    return _SEPARATOR.join(filter(None, (name, ending, figures)))


def figures_text(stats: Mapping[str, Scalar], *, is_full: bool = True) -> str:
    """Return the figures of an answer in people's words; if `is_full`, what the engine spared too."""
    rate, first_s, n_output, n_prompt, n_cached, n_drafted, n_accepted = (_number(stats.get(name)) for name in _FIGURES)
    parts = [
        speed_words(rate) if rate > 0 else "",
        f"first word after {first_s:.1f} s" if first_s >= _FELT_S else "",
        counted(round(n_output), "token") if n_output > 0 else "",
    ]
    if is_full:
        cached = f" ({n_cached / n_prompt:.0%} cached)" if n_cached > 0 and n_prompt > 0 else ""
        parts += [
            f"{n_prompt:,.0f} read{cached}" if n_prompt > 0 else "",
            f"drafts {n_accepted:,.0f} of {n_drafted:,.0f}" if n_drafted > 0 else "",
        ]
    return _SEPARATOR.join(filter(None, parts))


def _number(value: Scalar | None) -> float:
    """Return a stored figure, 0 for anything else: an imported chat may hold anything."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def advice(plan: Plan | None) -> str:
    """Return the cost of an unfavourable placement and the first remedy; empty if the model fits."""
    if plan is None or not plan.is_unfit or not plan.warning:
        return ""
    helps = f" Suggestion: {plan.first_remedy}." if plan.first_remedy else ""
    return f"{plan.warning}{helps} F7 shows the plan and applies it."
