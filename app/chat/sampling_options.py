"""The sampling options of a chat: their names, bounds and parsing. Pure.

Stored and imported chats may have anything under these names: `valid_options` returns only what is valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from app.chat.conversation import Scalar
from app.protocol.sampling import NUMBER_RANGES, NUMBER_TYPES
from quantizer.errors import UsageError

__all__ = ["SAMPLER_OPTIONS", "SamplerOption", "change_options", "parse_options", "valid_options", "validate_options"]


@dataclass(frozen=True, slots=True)
class SamplerOption:
    """One option under the service's name; the bounds are inclusive."""

    name: str
    kind: type[int] | type[float]
    lowest: float
    highest: float
    meaning: str

    def allows(self, value: Scalar) -> bool:
        """Return whether `value` is a number of this kind within the bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, self.kind)):
            return False
        return self.lowest <= value <= self.highest


def _sampling(name: str, meaning: str) -> SamplerOption:
    return SamplerOption(name, NUMBER_TYPES[name], *NUMBER_RANGES[name], meaning)


SAMPLER_OPTIONS = (
    _sampling("temperature", "0 always takes the likeliest token"),
    _sampling("top_p", "the likeliest tokens that come to this share"),
    _sampling("min_p", "tokens at least so likely beside the likeliest"),
    _sampling("top_k", "so many of the likeliest tokens; 0 all"),
    SamplerOption("seed", int, 0, 2**32 - 1, "the same seed and question, the same answer"),
    SamplerOption("max_tokens", int, 1, 2**31 - 1, "longest answer"),
)
_NAMES = tuple(option.name for option in SAMPLER_OPTIONS)


def parse_options(texts: Mapping[str, str]) -> dict[str, int | float]:
    """Parse `texts` by option name; a blank text is the model's default. Raises UsageError for an invalid value."""
    return {
        option.name: _number(option, texts[option.name].strip())
        for option in SAMPLER_OPTIONS
        if texts.get(option.name, "").strip()
    }


def change_options(options: Mapping[str, Scalar], text: str) -> dict[str, int | float]:
    """Return `options` with changes such as "temperature=0.2"; "temperature=" resets to the model's default.

    Raises UsageError for an invalid change.
    """
    texts = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in _NAMES:
            raise UsageError(f"{word} is not an option.", f"Write NAME=VALUE, NAME one of {', '.join(_NAMES)}.")
        texts[name] = value
    kept = {name: value for name, value in valid_options(options).items() if name not in texts}
    return kept | parse_options(texts)


def validate_options(options: Mapping[str, int | float | None]) -> dict[str, int | float]:
    """Return the `options` that are not None. Raises UsageError for an invalid value."""
    given = {name: value for name, value in options.items() if value is not None}
    for option in SAMPLER_OPTIONS:
        if option.name in given and not option.allows(given[option.name]):
            raise _refusal(option, str(given[option.name]))
    return given


def valid_options(options: Mapping[str, Scalar]) -> dict[str, int | float]:
    """Return the `options` that are known and valid."""
    return {
        option.name: option.kind(options[option.name])
        for option in SAMPLER_OPTIONS
        if option.name in options and option.allows(options[option.name])
    }


def _number(option: SamplerOption, text: str) -> int | float:
    try:
        value = option.kind(text)
    except ValueError:
        value = math.nan
    if not option.allows(value):
        raise _refusal(option, text)
    return value


def _refusal(option: SamplerOption, text: str) -> UsageError:
    what = "a whole number" if option.kind is int else "a number"
    return UsageError(f"{option.name} is {text}.", f"Give {what} from {option.lowest} to {option.highest}, or nothing.")
