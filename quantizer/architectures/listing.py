"""What `localllm quantize --list-architectures` lists: which classes convert, what of them does not, and which do not.

Nothing is decided here: the settings come from the entries' own table of what llama.cpp assumes, the rope scalings from
asking an entry for each, the classes left out from the table that refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantizer.architectures import UNCONVERTIBLE, Architecture, generated_tensors
from quantizer.architectures.architecture import given
from quantizer.architectures.families import FAMILIES
from quantizer.architectures.projectors import PROJECTORS, Projector
from quantizer.checkpoint.config import CheckpointError, Config

_SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
}
_SCALING = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "dynamic": {},
    "yarn": {},
    "yarn with truncate = false": {"rope_type": "yarn", "truncate": False},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": _FACTORS,
}
_REFUSED = "Choose another model."  # the remedy of what llama.cpp lacks; others are mistakes of a config.json


@dataclass(frozen=True, slots=True)
class ListedArchitecture:
    """The HF classes of an entry, and llama.cpp's name for them: of a projector that of its kind.

    `required` are the values that settings must have where config.json has them, `derived` settings whose value must
    follow from others, and `refused_scalings` the kinds of rope scaling that do not convert.
    """

    classes: tuple[str, ...]
    architecture: str
    required: Mapping[str, Any]
    derived: tuple[str, ...]
    refused_scalings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedClass:
    hf_class: str
    reason: str


def listed_architectures() -> list[ListedArchitecture]:
    """Return all that converts, projectors last; a class for which llama.cpp has several names has a row for each."""
    found: list[ListedArchitecture] = []
    for entry in (*FAMILIES, *(entry for entries in PROJECTORS.values() for entry in entries)):
        for each in (entry, *entry.variants):
            name = each.kind if isinstance(each, Projector) else each.gguf_name
            processor = each.processor_assumed if isinstance(each, Projector) else {}
            assumed = {**each.settings.assumed, **processor}
            row = ListedArchitecture(
                entry.hf_classes,
                name,
                {key: value for key, value in assumed.items() if not callable(value)},
                tuple(key for key, value in assumed.items() if callable(value)),
                tuple(_refused_scalings(each)),
            )
            if row not in found:
                found.append(row)
    return found


def refused_classes() -> list[RefusedClass]:
    return [RefusedClass(name, reason) for name, reason in UNCONVERTIBLE.items()]


def _refused_scalings(entry: Architecture) -> Iterator[str]:
    rope = [row for row in entry.hyperparameters if row.key.startswith("rope.")]
    for name, settings in _SCALINGS.items() if rope else ():
        scaling = {"rope_type": name, **_SCALING, **settings}
        config = Config({**given(entry.settings.defaults), **_SIZES, "rope_parameters": scaling})
        try:
            for row in rope:
                row.read(config)
            generated_tensors(entry, config)
        except CheckpointError as error:
            if error.remedy == _REFUSED:
                yield name
