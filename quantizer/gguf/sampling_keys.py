"""How a model's maker wants it sampled: the keys of a GGUF and of generation_config.json, read and checked.

Both come from strangers: a value that is no number, not finite or out of range is left out, with a word about it. Names
are this engine's. Sources: gguf-py's constants.py and common/common.cpp (`common_init_sampler_from_model`) of the
llama.cpp vendored in llama-cpp-python 0.3.36; transformers' GenerationConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quantizer.gguf.header import Entry, Header, encode_entry

Number: TypeAlias = int | float

GENERATION_CONFIG = "generation_config.json"
_PREFIX = "general.sampling."
_SEQUENCE = f"{_PREFIX}sequence"
_MOST_STAGES = 32


@dataclass(frozen=True, slots=True)
class _Option:
    """An option: the end of its GGUF key ("" for one that GGUFs have none for), its names in generation_config.json,
    the first that is there counting, and its range."""

    key: str
    names: tuple[str, ...]
    lowest: float
    highest: float
    kind: type[int] | type[float] = float


# By the engine's name.
_OPTIONS: Mapping[str, _Option] = {
    "temperature": _Option("temp", ("temperature",), 0, 100),
    "top_k": _Option("top_k", ("top_k",), -1, 1_000_000, int),  # -1, in llama.cpp and vLLM: all
    "top_p": _Option("top_p", ("top_p",), 0, 1),
    "min_p": _Option("min_p", ("min_p",), 0, 1),
    "xtc_probability": _Option("xtc_probability", ("xtc_probability",), 0, 1),
    "xtc_threshold": _Option("xtc_threshold", ("xtc_threshold",), 0, 1),
    "penalty_last_n": _Option("penalty_last_n", ("penalty_last_n",), -1, 1_000_000, int),
    "repeat_penalty": _Option("penalty_repeat", ("penalty_repeat", "repetition_penalty"), 0.01, 100),
    "mirostat": _Option("mirostat", ("mirostat",), 0, 2, int),
    "mirostat_tau": _Option("mirostat_tau", ("mirostat_tau",), 0, 100),
    "mirostat_eta": _Option("mirostat_eta", ("mirostat_eta",), 0, 10),
    "typical_p": _Option("", ("typical_p",), 0, 1),
    "presence_penalty": _Option("", ("presence_penalty",), -100, 100),
    "frequency_penalty": _Option("", ("frequency_penalty",), -100, 100),
}
# The stages of a `sequence` of samplers, and the options that switch off one that it leaves out.
_STAGES: Mapping[str, Mapping[str, Number]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
    "infill": {},
    "adaptive_p": {},
}
_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
_COMPACT = {name.replace("_", ""): name for name in _STAGES}  # top-k, topk


@dataclass(frozen=True, slots=True)
class StatedSampling:
    """The options that a model's maker states, by the engine's names; `ignored` says what was left out, and why."""

    options: Mapping[str, Number] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


NOTHING_STATED = StatedSampling()


def sampling_of_header(header: Header) -> StatedSampling:
    """Return what the keys general.sampling.* of a GGUF state."""
    metadata = header.metadata
    given = {name: metadata.get(f"{_PREFIX}{option.key}") for name, option in _OPTIONS.items() if option.key}
    return _stated(given, metadata.get(_SEQUENCE), lambda name: f"{_PREFIX}{_OPTIONS[name].key}", _SEQUENCE)


def sampling_of_config(config: Mapping[str, Any]) -> StatedSampling:
    """Return what a generation_config.json states. `do_sample` false is greedy decoding, whatever else is there."""
    given = {
        name: next((config[each] for each in option.names if config.get(each) is not None), None)
        for name, option in _OPTIONS.items()
    }
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    where = f"in {GENERATION_CONFIG}"
    return _stated(
        given, config.get("sequence"), lambda name: f"{_OPTIONS[name].names[-1]} {where}", f"sequence {where}"
    )


def sampling_entries(stated: StatedSampling) -> Iterator[Entry]:
    """Yield the entries of a GGUF for what llama.cpp has keys for, as it types them."""
    for name, value in stated.options.items():
        if name in _OPTIONS and (key := _OPTIONS[name].key):
            yield encode_entry(f"{_PREFIX}{key}", value, "i32" if _OPTIONS[name].kind is int else "f32")


def checked_number(name: str, value: object) -> Number | None:
    """Return `value` as the option `name` takes it; None for one that makes no sense."""
    option = _OPTIONS.get(name)
    if option is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not option.lowest <= value <= option.highest:  # NaN too
        return None
    if option.kind is int:
        whole = int(value)
        return None if whole != value else max(whole, 0) if name == "top_k" else whole
    return float(f"{value:.7g}")  # a GGUF has 0.6 as 0.60000002384


def _stated(
    given: Mapping[str, Any], sequence: object, label: Callable[[str], str], sequence_label: str
) -> StatedSampling:
    options: dict[str, Number] = {}
    ignored: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        number = checked_number(name, value)
        if number is None:
            ignored.append(f"{label(name)} is {_shown(value)}")
        else:
            options[name] = number
    if sequence is not None:
        stages = _stages_of(sequence)
        if stages is None:
            ignored.append(f"{sequence_label} is {_shown(sequence)}")
        else:
            for stage in _STAGES.keys() - stages:
                options |= _STAGES[stage]
    return StatedSampling(options, tuple(ignored))


def _stages_of(sequence: object) -> set[str] | None:
    """Return the stages that a `sequence` such as "top_k;temperature" names, None where it names an unknown one. Their
    order stays this engine's."""
    if not isinstance(sequence, str) or sequence.count(";") >= _MOST_STAGES:
        return None
    names = [name.strip().lower() for name in sequence.split(";") if name.strip()]
    found = [_ALIASES.get(name) or _COMPACT.get(name.replace("_", "").replace("-", "")) for name in names]
    known = {name for name in found if name is not None}
    return known if known and len(known) == len(set(names)) else None


def _shown(value: object) -> str:
    is_short = isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() < 64)
    text = repr(value) if is_short else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:39]}…"
