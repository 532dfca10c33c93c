"""What a model thought aloud before its answer, in figures and words.

Owns the names under which the figures are kept with a message. Pure but for the clock it is given.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.chat.message import Scalar, Utterance
from tui.meter import Clock
from tui.reply import Portion

__all__ = ["ThoughtWatch", "thought_words"]

_SPAN_S, _N_TOKENS = "thought_s", "n_thought_tokens"


class ThoughtWatch:
    """Times the thoughts of one answer from the first to the last; `stats` are the figures so far, none without a
    thought. `former` are those of an answer that is written on."""

    def __init__(self, clock: Clock, former: Mapping[str, Scalar]) -> None:
        self.stats: Mapping[str, Scalar] = {name: former[name] for name in (_SPAN_S, _N_TOKENS) if name in former}
        self._clock = clock
        self._first_s: float | None = None

    def follow(self, portion: Portion) -> None:
        """Take note of what has come."""
        if portion.n_thought_tokens is None:
            return
        now_s = self._clock()
        self._first_s = now_s if self._first_s is None else self._first_s
        self.stats = {_SPAN_S: now_s - self._first_s, _N_TOKENS: portion.n_thought_tokens}


def thought_words(message: Utterance, *, is_running: bool) -> str:
    """Return what is said of the thoughts of a message, as far as it is known."""
    span_s, n_tokens = message.stats.get(_SPAN_S), message.stats.get(_N_TOKENS)
    verb = "thinking" if is_running and not message.content else "thought"
    span = f" for {span_s:.1f} s" if isinstance(span_s, float) else ""
    return f"{verb}{span}" + (f", {n_tokens} token{'s' if n_tokens != 1 else ''}" if n_tokens is not None else "")
