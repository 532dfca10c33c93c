"""The sampling fields of a request, under llama-server's names, which the other dialects share.

Owns how llama-server writes values that the engine writes otherwise. Knows nothing of prompts or of answers.
"""

from __future__ import annotations

from math import inf
from typing import Any, TypeAlias
from uuid import uuid4

from pydantic import StrictBool, StrictInt, StrictStr, create_model

from app.engine.request import Request, SamplingParams
from app.protocol.sampling import NUMBER_TYPES
from app.service.api.fields import Body
from quantizer.errors import RequestError

__all__ = ["SamplingBody"]

Bias: TypeAlias = StrictBool | float  # false bans the token

_OTHER_NAMES = {"penalty_last_n": "repeat_last_n"}
_NUMBER_FIELDS: dict[str, Any] = {
    _OTHER_NAMES.get(name, name): (kind | None, None) for name, kind in NUMBER_TYPES.items()
}
_NumberFields = create_model("_NumberFields", __base__=Body, **_NUMBER_FIELDS)


class SamplingBody(_NumberFields):  # type: ignore[valid-type, misc]  # made of the options that are declared once
    """The numbers of SamplingOptions, and the other options; None means not given."""

    stop: StrictStr | list[StrictStr] | None = None
    seed: int | None = None
    dry_sequence_breakers: list[StrictStr] | None = None
    logit_bias: dict[str, Bias] | list[tuple[StrictInt, Bias]] | None = None
    grammar: StrictStr | None = None

    def sampling(self, format_grammar: str = "") -> SamplingParams:
        """Return the engine's parameters; `format_grammar` is the grammar of the output format, if any.

        Raises RequestError for values out of range, and for two grammars.
        """
        numbers = {name: getattr(self, _OTHER_NAMES.get(name, name)) for name in NUMBER_TYPES}
        options: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
        if options.get("top_k", 0) < 0:  # llama.cpp's "all of them"
            options["top_k"] = 0
        if self.seed != -1:  # llama.cpp's "random"
            options["seed"] = self.seed
        if self.dry_sequence_breakers is not None:
            options["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        if format_grammar and self.grammar:
            raise RequestError("grammar excludes response_format and schemas.", "Send only one of them.")
        options["grammar"] = format_grammar or self.grammar or ""
        return SamplingParams(**options, logit_bias=self._biases())

    def new_request(
        self, prompt: str | tuple[int, ...], format_grammar: str, max_tokens: int | None, **options: Any
    ) -> Request:
        """Return the engine's request with a new id. Raises RequestError for values out of range."""
        return Request(
            request_id=uuid4().hex,
            prompt=prompt,
            sampling=self.sampling(format_grammar),
            max_tokens=max_tokens,
            stop=self.stop_strings(),
            **options,
        )

    def stop_strings(self) -> tuple[str, ...]:
        """Return the texts that end the answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _biases(self) -> tuple[tuple[int, float], ...]:
        """Return the biases by token id: keys of a JSON object are text, and llama-server accepts pairs too."""
        biases = self.logit_bias or {}
        pairs = biases.items() if isinstance(biases, dict) else biases
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)


def _token_id(text: str | int) -> int:
    if isinstance(text, int):
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RequestError(f"logit_bias names {text[:40]!r}, which is not a token id.", "Use ids from /tokenize.")
    return int(text)


def _bias(value: bool | float) -> float:
    if value is True:
        raise RequestError("logit_bias of a token is true.", "Give a number, or false to ban the token.")
    return -inf if value is False else value
