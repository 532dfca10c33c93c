"""The figures of an answer: measured while it streams, and replaced by the engine's report when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.chat.conversation import MessageContent, Scalar
from app.protocol.chat import Completed

_MIN_RATE_SPAN_S = 0.2
_REASONING_S, _N_REASONING_TOKENS = "thought_s", "n_thought_tokens"  # keys of a message's stats
_N_CUT_TOKENS = "n_cut_reasoning_tokens"  # as `Completed`
_N_TOKENS, _FIRST_TOKEN_S, _RATE = "n_output_tokens", "time_to_first_token_s", "decode_tokens_per_s"  # as `Completed`
_NO_STATS: Mapping[str, Scalar] = MappingProxyType({})

Clock = Callable[[], float]
"""Returns seconds from any fixed point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """The figures of the last answer of a chat; None is unknown. `cost` is the engine's report, which a running or
    stopped answer lacks; `n_context_tokens` are those of the chat with the answer."""

    model: str = ""
    tokens_per_s: float | None = None
    time_to_first_token_s: float | None = None
    n_context_tokens: int = 0
    is_context_estimated: bool = False
    cost: Completed | None = None

    @classmethod
    def of_cost(cls, model: str, cost: Completed) -> AnswerFigures:
        """Return the figures that the engine reported."""
        return cls(
            model=model,
            tokens_per_s=cost.decode_tokens_per_s,
            time_to_first_token_s=cost.time_to_first_token_s,
            n_context_tokens=cost.n_prompt_tokens + cost.n_output_tokens,
            cost=cost,
        )


class AnswerTimer:
    """Measures one answer from its creation on; the engine's figures replace the rates when it ends.

    `stats` are the figures of the reasoning for the message, at first those among `former_stats` of a continued answer.
    """

    def __init__(self, clock: Clock, former_stats: Mapping[str, Scalar] = _NO_STATS) -> None:
        keys = (_REASONING_S, _N_REASONING_TOKENS)
        self.stats: Mapping[str, Scalar] = {key: former_stats[key] for key in keys if key in former_stats}
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_first_tokens = 0
        self._n_tokens = 0
        self._reasoning_started_s: float | None = None

    def observe(self, n_tokens: int, n_thought_tokens: int | None = None) -> None:
        """Record a chunk: the answer has `n_tokens` now, of which `n_thought_tokens` are reasoning if it had any."""
        now_s = self._clock()
        self._n_tokens = n_tokens
        if self._first_s is None:
            self._first_s, self._n_first_tokens = now_s, n_tokens
        if n_thought_tokens is not None:
            if self._reasoning_started_s is None:
                self._reasoning_started_s = now_s
            self.stats = {
                _REASONING_S: now_s - self._reasoning_started_s,
                _N_REASONING_TOKENS: n_thought_tokens,
            }

    def figures(self, model: str, n_context_before: int) -> AnswerFigures:
        """Return the figures of the running answer, whose request had about `n_context_before` tokens."""
        return AnswerFigures(
            model=model,
            tokens_per_s=self.tokens_per_s,
            time_to_first_token_s=self.time_to_first_token_s,
            n_context_tokens=n_context_before + self._n_tokens,
            is_context_estimated=True,
        )

    @property
    def final_stats(self) -> Mapping[str, Scalar]:
        """The stats of an answer that ends without the engine's figures: what was measured here."""
        measured = {
            _N_TOKENS: self._n_tokens or None,
            _FIRST_TOKEN_S: self.time_to_first_token_s,
            _RATE: self.tokens_per_s,
        }
        return {**self.stats, **{key: value for key, value in measured.items() if value is not None}}

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._started_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first chunk; None until the span is long enough."""
        span_s = 0.0 if self._first_s is None else self._clock() - self._first_s
        n_tokens = max(0, self._n_tokens - self._n_first_tokens)
        return n_tokens / span_s if span_s >= _MIN_RATE_SPAN_S else None


def format_reasoning(message: MessageContent, *, is_running: bool) -> str:
    """Return how long a message's reasoning took and how many tokens it has, as far as known; of one that was ended
    early, how many it had by then."""
    n_cut = message.stats.get(_N_CUT_TOKENS)
    if isinstance(n_cut, int) and n_cut > 0:
        return f"thought ended after {n_cut} token{'s' if n_cut != 1 else ''}"
    span_s, n_tokens = message.stats.get(_REASONING_S), message.stats.get(_N_REASONING_TOKENS)
    verb = "thinking" if is_running and not message.content else "thought"
    span = f" for {span_s:.1f} s" if isinstance(span_s, float) else ""
    return f"{verb}{span}" + (f", {n_tokens} token{'s' if n_tokens != 1 else ''}" if n_tokens is not None else "")
