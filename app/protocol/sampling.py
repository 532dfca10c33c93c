"""The sampling options: names, types, defaults and ranges, declared once for the engine, the HTTP bodies and chats; and
what a model is sampled with where a request does not say it, with who decided that.

Names and defaults are llama-server's. Independent of how a token is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args, get_type_hints

from annotated_types import Interval

from app.protocol.errors import RequestError
from quantizer.figures import format_number

MAX_GRAMMAR_BYTES = 64 * 1024
_MAX_BREAKERS = 16
_MAX_BREAKER_BYTES = 40  # llama.cpp cuts longer ones


@dataclass(frozen=True, slots=True)
class Usual:
    """The numbers that people use, both bounds inclusive: another one is valid, but hardly meant. Temperature and the
    two penalties as OpenAI's API takes them; the others are our estimates, wide enough for every preset that ships."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """The options of the sampler, each with its meaning. `temperature` 0 is greedy; `seed` None is random.
    `penalty_last_n` and `dry_penalty_last_n` count tokens back, -1 meaning the whole context. `mirostat` 1 or 2
    replaces every stage but biases and temperature. Raises RequestError when a number is outside its range, a list too
    long or the grammar larger than 64 KiB."""

    temperature: Annotated[float, Interval(ge=0, le=100), Usual(0, 2), "0 always takes the likeliest token"] = 0.8
    top_k: Annotated[int, Interval(ge=0, le=1_000_000), Usual(0, 1000), "so many of the likeliest tokens; 0 all"] = 40
    top_p: Annotated[float, Interval(ge=0, le=1), Usual(0.05, 1), "share of probability that is kept"] = 0.95
    min_p: Annotated[float, Interval(ge=0, le=1), Usual(0, 0.5), "least probability beside the likeliest"] = 0.05
    repeat_penalty: Annotated[
        float, Interval(ge=0.01, le=100), Usual(0.8, 2), "above 1 tokens used lately are less likely"
    ] = 1.0
    presence_penalty: Annotated[
        float, Interval(ge=-100, le=100), Usual(-2, 2), "above 0 used tokens are less likely"
    ] = 0.0
    frequency_penalty: Annotated[float, Interval(ge=-100, le=100), Usual(-2, 2), "the same, growing with each use"] = (
        0.0
    )
    penalty_last_n: Annotated[int, Interval(ge=-1, le=1_000_000), "tokens back that count as used; -1 all"] = 64
    typical_p: Annotated[float, Interval(ge=0, le=1), Usual(0.05, 1), "tokens of expected surprise; 1 off"] = 1.0
    top_n_sigma: Annotated[
        float, Interval(ge=-1, le=1000), Usual(-1, 10), "deviations below the likeliest; -1 off"
    ] = -1.0
    xtc_probability: Annotated[float, Interval(ge=0, le=1), "how often the likeliest are left out"] = 0.0
    xtc_threshold: Annotated[float, Interval(ge=0, le=1), "XTC leaves out only tokens above this"] = 0.1
    dynatemp_range: Annotated[float, Interval(ge=0, le=100), Usual(0, 2), "temperature varies this far; 0 off"] = 0.0
    dynatemp_exponent: Annotated[float, Interval(ge=0, le=100), "how entropy becomes temperature"] = 1.0
    dry_multiplier: Annotated[float, Interval(ge=0, le=100), Usual(0, 5), "penalty for repeated sequences; 0 off"] = 0.0
    dry_base: Annotated[float, Interval(ge=1, le=100), Usual(1, 4), "its growth with each repeated token"] = 1.75
    dry_allowed_length: Annotated[int, Interval(ge=0, le=1_000_000), "tokens that may repeat without it"] = 2
    dry_penalty_last_n: Annotated[int, Interval(ge=-1, le=1_000_000), "tokens back that it searches; -1 all"] = 64
    dry_sequence_breakers: Annotated[tuple[str, ...], "texts at which a sequence ends"] = ("\n", ":", '"', "*")
    mirostat: Annotated[int, Interval(ge=0, le=2), "1 or 2 replaces the samplers above; 0 off"] = 0
    mirostat_tau: Annotated[float, Interval(ge=0, le=100), Usual(1, 10), "surprise that mirostat aims at"] = 5.0
    mirostat_eta: Annotated[float, Interval(ge=0, le=10), Usual(0.001, 1), "how fast mirostat adapts"] = 0.1
    seed: Annotated[int | None, "same seed and question, same answer"] = None
    grammar: Annotated[str, "form of the answer: GBNF, or its file"] = ""

    def __post_init__(self) -> None:
        for name, (lowest, highest) in NUMBER_RANGES.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and lowest <= value <= highest):
                raise RequestError(f"{name} is {value}.", f"Give a number from {lowest} to {highest}.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed is {self.seed}.", "Give a 64-bit integer.")
        if len(self.dry_sequence_breakers) > _MAX_BREAKERS:
            cause = f"There are {len(self.dry_sequence_breakers)} dry_sequence_breakers."
            raise RequestError(cause, f"Give at most {_MAX_BREAKERS}.")
        for text in self.dry_sequence_breakers:
            n_bytes = len(text.encode("utf-8", "replace"))
            if not 1 <= n_bytes <= _MAX_BREAKER_BYTES or "\0" in text:
                cause = "One of the dry_sequence_breakers is empty, too long or contains a NUL."
                raise RequestError(cause, f"Use 1 to {_MAX_BREAKER_BYTES} bytes of text.")
        if len(self.grammar.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
            raise RequestError("The grammar is larger than 64 KiB.", "Use a smaller grammar.")


_HINTS = {
    name: (get_args(hint)[0], hint.__metadata__)
    for name, hint in get_type_hints(SamplingOptions, include_extras=True).items()
}
NUMBER_TYPES: dict[str, type[int] | type[float]] = {
    name: kind for name, (kind, notes) in _HINTS.items() if isinstance(notes[0], Interval)
}
# name: (lowest, highest) allowed, both inclusive. NaN and infinities are refused.
NUMBER_RANGES: dict[str, tuple[float, float]] = {
    name: (_HINTS[name][1][0].ge, _HINTS[name][1][0].le) for name in NUMBER_TYPES
}
USUAL_RANGES: dict[str, Usual] = {
    name: note for name, (_, notes) in _HINTS.items() for note in notes if isinstance(note, Usual)
}
# What each option does, for people.
SAMPLER_DESCRIPTIONS: dict[str, str] = {name: notes[-1] for name, (_, notes) in _HINTS.items()}
# The names that differ in requests over HTTP: there they are llama-server's.
HTTP_NAMES = {"penalty_last_n": "repeat_last_n"}

# Who decided a default: the recipe of a model (Ollama's parameters too), its GGUF, its maker's generation_config.json
# from the hub, the catalogue, or nobody but us. The first that states an option decides it.
SamplingOrigin: TypeAlias = Literal["recipe", "model", "hub", "catalogue", "localllm"]


@dataclass(frozen=True, slots=True)
class SamplingDefault:
    """The value of an option where a request has none, and whose it is."""

    value: int | float
    origin: SamplingOrigin

    @property
    def words(self) -> str:
        return f"{format_number(self.value)} · {self.origin}"


def _our_options() -> dict[str, SamplingDefault]:
    unsaid = SamplingOptions()
    return {name: SamplingDefault(getattr(unsaid, name), "localllm") for name in NUMBER_TYPES}


@dataclass(frozen=True, slots=True)
class ModelSampling:
    """How a model is sampled where a request does not say it: every numeric option of SamplingOptions by its name.
    `ignored` says which statements made no sense and were left out."""

    options: Mapping[str, SamplingDefault] = field(default_factory=_our_options)
    ignored: tuple[str, ...] = ()

    @property
    def stated(self) -> dict[str, int | float]:
        """The options that others than us decided."""
        return {name: each.value for name, each in self.options.items() if each.origin != "localllm"}

    @property
    def words(self) -> str:
        """The options that others than us decided, in one line."""
        stated = {name: each for name, each in self.options.items() if each.origin != "localllm"}
        return ", ".join(f"{name} {format_number(each.value)} ({each.origin})" for name, each in stated.items())


OUR_SAMPLING = ModelSampling()


def model_sampling(
    layers: Sequence[tuple[SamplingOrigin, Mapping[str, int | float]]], ignored: tuple[str, ...] = ()
) -> ModelSampling:
    """Return the sampling of a model by `layers`, the first of which decides an option that it states."""
    options = dict(OUR_SAMPLING.options)
    for origin, stated in reversed(layers):
        options |= {name: SamplingDefault(value, origin) for name, value in stated.items() if name in NUMBER_TYPES}
    return ModelSampling(options, ignored)
