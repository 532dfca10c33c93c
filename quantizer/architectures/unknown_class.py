"""The error for a class that is not in the table: why, where that is known, and which known ones are nearest.

Names are compared without their endings (`ForCausalLM` and the like), by the class and by the config's model_type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import CheckpointError

_N_NEAREST = 3
_MAX_NAME = 64
_GUIDE = Path(__file__).parents[1] / "README.md"
_ENDING = re.compile(r"(For[A-Z]\w*|LMHeadModel|WithLMHeadModel|TextModel|ModelLM|Model|LM)$")
_NO_WORDS = re.compile(r"[^a-z0-9]+")
_FAMILY = re.compile(r"[a-z]+")
_BY_DIFFUSION = "it generates text by diffusion, which is not supported"
# HF class -> why it stays out of the table
UNCONVERTIBLE: dict[str, str] = dict.fromkeys(
    ("DreamModel", "LLaDAMoEModel", "LLaDAMoEModelLM", "LLaDAModelLM", "RND1"), _BY_DIFFUSION
)


def unknown_class(name: str, settings: Mapping[str, Any], known: Iterable[str]) -> CheckpointError:
    """Return the error for the class `name` (empty: config.json names none) of a config with these `settings`."""
    shown = name[:_MAX_NAME] or "of this checkpoint"
    if name in UNCONVERTIBLE:
        return CheckpointError(
            f"The architecture {shown} cannot be converted: {UNCONVERTIBLE[name]}.", "Choose another model."
        )
    part = settings.get("text_config")
    found = (settings.get("model_type"), part.get("model_type") if isinstance(part, dict) else None)
    nearest = ", ".join(
        nearest_classes((name[:_MAX_NAME], *([kind[:_MAX_NAME] for kind in found if isinstance(kind, str)])), known)
    )
    return CheckpointError(
        f"The architecture {shown} cannot be converted yet{'; the nearest known: ' if nearest else ''}{nearest}.",
        f'Look for a GGUF of this model, or add the architecture: "How to add" in {_GUIDE}.',
    )


def nearest_classes(hints: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the three classes of `known` that are most like any of `hints`, one for each model; none without hints."""
    if not (wanted := [hint for hint in hints if hint]):
        return []
    endings = {_ending(hint) for hint in wanted}
    stems = [_stem(hint) for hint in wanted]
    ranked = sorted(known, key=lambda name: (-_likeness(_stem(name), stems), _ending(name) not in endings))
    by_model = {_stem(name): name for name in reversed(ranked)}
    return [name for name in ranked if by_model[_stem(name)] == name][:_N_NEAREST]


def _likeness(stem: str, wanted: Iterable[str]) -> float:
    """Return how alike names are: of one family, which is their first letters, they are always nearer than others."""
    return max((SequenceMatcher(None, stem, other).ratio() + _is_of_family(stem, other) for other in wanted), default=0)


def _is_of_family(stem: str, other: str) -> bool:
    mine, theirs = _FAMILY.match(stem), _FAMILY.match(other)
    return mine is not None and theirs is not None and mine[0] == theirs[0]


def _stem(name: str) -> str:
    return _NO_WORDS.sub("", _ENDING.sub("", name).lower())


def _ending(name: str) -> str:
    found = _ENDING.search(name)
    return found[0] if found else ""
