"""The table of projectors that can be converted, by the class of the checkpoint that they are part of.

A class that sees and hears has an entry for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantizer.architectures import find_architecture
from quantizer.architectures.architecture import check_settings, given, unfolded, usually_named
from quantizer.architectures.projectors.audio import QWEN_AUDIO, WHISPER
from quantizer.architectures.projectors.gemma4 import GEMMA_4_PROJECTORS
from quantizer.architectures.projectors.internvl import INTERNVL
from quantizer.architectures.projectors.pixtral import PIXTRAL
from quantizer.architectures.projectors.projector import Projector
from quantizer.architectures.projectors.qwen_vl import GLM_4V, QWEN_VL_PROJECTORS
from quantizer.architectures.projectors.siglip import PADDLEOCR, SIGLIP
from quantizer.checkpoint.config import CheckpointError, Config

__all__ = ["PROJECTORS", "Projector", "find_projector", "projectors_for"]

_FAMILIES: tuple[Projector, ...] = (
    *SIGLIP,
    *QWEN_VL_PROJECTORS,
    *PIXTRAL,
    *INTERNVL,
    *GEMMA_4_PROJECTORS,
    *GLM_4V,
    *PADDLEOCR,
    *WHISPER,
    *QWEN_AUDIO,
)
# HF class -> its entries, one for each tower
PROJECTORS: dict[str, tuple[Projector, ...]] = {
    name: tuple(entry for entry in _FAMILIES if name in entry.hf_classes)
    for family in _FAMILIES
    for name in family.hf_classes
}


def projectors_for(values: Mapping[str, Any]) -> tuple[Projector, ...]:
    """Return the entries for a parsed config.json, none for a class whose tower is not known."""
    classes = values.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else ""
    return PROJECTORS.get(name, ()) if isinstance(name, str) else ()


def find_projector(
    projector: Projector, values: dict[str, Any], processor: Mapping[str, Any]
) -> tuple[Projector, Config]:
    """Return the entry for one config of its classes, and that config; `processor` is preprocessor_config.json.

    Raises CheckpointError for a setting that libmtmd would not follow.
    """
    _, language = find_architecture(values)
    whole = unfolded(values)
    own = usually_named(given(Config(whole).section(projector.section).values), projector.settings.aliases)
    parts = {"language": language.values, "processor": given(processor), "model": whole}
    config = Config({**projector.settings.defaults, **own, **parts})
    config = Config({**config.values, **projector.derived(config)})
    entry = projector.variant(config) or projector
    assert isinstance(entry, Projector)
    check_settings(entry, config)
    for key, expected in entry.processor_assumed.items():
        value = parts["processor"].get(key, expected)
        # factors are written with more digits or fewer
        are_floats = isinstance(expected, float) and isinstance(value, float)
        if not (math.isclose(value, expected, rel_tol=1e-4) if are_floats else value == expected):
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {str(processor[key])[:64]}, which llama.cpp does not support.",
                "Choose another model.",
            )
    return entry, config
