"""How the next token is chosen, in the words of llama-server, which other dialects share or take from.

Owns these fields' names and what each of them means by its odd values. Knows nothing of prompts or of answers.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

from pydantic import StrictBool, StrictInt, StrictStr

from app.engine.request import SamplingParams
from app.service.api.fields import Body
from quantizer.errors import RequestError

__all__ = ["SamplingBody"]

_SAME_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "seed",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "grammar",
)

Bias: TypeAlias = StrictBool | float  # false bans the token


class SamplingBody(Body):
    """None means: not given."""

    stop: StrictStr | list[StrictStr] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    seed: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[StrictStr] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: dict[str, Bias] | list[tuple[StrictInt, Bias]] | None = None
    grammar: StrictStr | None = None

    def sampling(self, format_grammar: str = "") -> SamplingParams:
        """Return the engine's parameters; `format_grammar` is what the form of the answer asks for, if any.

        Raises RequestError for values out of range, and for two grammars.
        """
        given = {name: value for name in _SAME_NAMES if (value := getattr(self, name)) is not None}
        # llama.cpp's ways to say "all of them" and "draw one"
        if given.get("top_k", 0) < 0:
            given["top_k"] = 0
        if given.get("seed") == -1:
            del given["seed"]
        if self.repeat_last_n is not None:
            given["penalty_last_n"] = self.repeat_last_n
        if self.dry_sequence_breakers is not None:
            given["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        if format_grammar:
            if self.grammar:
                raise RequestError("Both grammar and response_format (or a schema) are given.", "Give one of them.")
            given["grammar"] = format_grammar
        return SamplingParams(**given, logit_bias=self._biases())

    def stop_strings(self) -> tuple[str, ...]:
        """Return the texts that end the answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _biases(self) -> tuple[tuple[int, float], ...]:
        """Return the biases by token id: keys of an object are text in JSON, and llama-server takes pairs too."""
        given = self.logit_bias or {}
        pairs = given.items() if isinstance(given, dict) else given
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)


def _token_id(text: str | int) -> int:
    if isinstance(text, int):
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RequestError(f"logit_bias names {text[:40]!r}, which is no token id.", "Use ids from /tokenize.")
    return int(text)


def _bias(value: bool | float) -> float:
    if value is True:
        raise RequestError("logit_bias of a token is true.", "Give a number, or false to ban the token.")
    return -inf if value is False else value
