"""The options of the sampler that a chat may have: which there are, what each may be, and text to values.

Pure. What was kept or imported may hold anything under these names: `sampler_of` lets pass only what will do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from app.chat.conversation import Scalar
from app.protocol.sampling import NUMBER_RANGES, NUMBER_TYPES
from quantizer.errors import UsageError

__all__ = ["SAMPLER_OPTIONS", "SamplerOption", "changed", "checked", "parsed", "sampler_of"]


@dataclass(frozen=True, slots=True)
class SamplerOption:
    """One option, under the name that the service gives it; both bounds are allowed."""

    name: str
    kind: type[int] | type[float]
    lowest: float
    highest: float
    meaning: str

    def allows(self, value: Scalar) -> bool:
        """Whether `value` is a number of this kind within the bounds."""
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


def parsed(texts: Mapping[str, str]) -> dict[str, int | float]:
    """Return the options that are written in `texts` by their names; a blank text leaves the choice to the model.

    Raises UsageError for what will not do.
    """
    return {
        option.name: _number(option, texts[option.name].strip())
        for option in SAMPLER_OPTIONS
        if texts.get(option.name, "").strip()
    }


def changed(options: Mapping[str, Scalar], text: str) -> dict[str, int | float]:
    """Return `options` as the words of `text` change them, such as temperature=0.2; temperature= leaves the choice to
    the model. Raises UsageError for what will not do."""
    texts = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in _NAMES:
            raise UsageError(f"{word} sets no option.", f"Write NAME=VALUE, NAME one of {', '.join(_NAMES)}.")
        texts[name] = value
    kept = {name: value for name, value in sampler_of(options).items() if name not in texts}
    return kept | parsed(texts)


def checked(options: Mapping[str, int | float | None]) -> dict[str, int | float]:
    """Return those of `options` that are given, not None. Raises UsageError for what will not do."""
    given = {name: value for name, value in options.items() if value is not None}
    for option in SAMPLER_OPTIONS:
        if option.name in given and not option.allows(given[option.name]):
            raise _refusal(option, str(given[option.name]))
    return given


def sampler_of(options: Mapping[str, Scalar]) -> dict[str, int | float]:
    """Return those of `options` that the sampler has and that are allowed."""
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
