"""What the settings attach to the default model of the service: LoRA adapters, control vectors, a draft model.

Owns their syntax, FILE[=NAME] and FILE[=SCALE], and their validation. Independent of engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from app.library.local.resolve import absolute, resolve
from app.settings.settings import Settings
from quantizer.errors import UsageError
from quantizer.gguf.lora_adapter import validate_adapter
from quantizer.gguf.validation import validate_gguf

__all__ = ["NOTHING_ATTACHED", "Attachments", "read_attachments"]

MAX_SCALE = 100.0


@dataclass(frozen=True, slots=True)
class Attachments:
    """Valid files: (path, name) of each adapter, (path, scale) of each control vector.

    `draft_path` is the path of the draft model, or empty.
    """

    lora: tuple[tuple[str, str], ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    draft_path: str = ""


NOTHING_ATTACHED = Attachments()


def read_attachments(settings: Settings, model: Path) -> Attachments:
    """Return what `settings` attach to the valid GGUF `model`.

    Raises UsageError for an invalid scale, ModelFileError for an invalid file, UnknownModelError for a draft model that
    is not installed.
    """
    lora = tuple((str(path), name or path.stem) for path, name in map(_split, settings.lora))
    vectors = tuple((str(path), _scale(text)) for path, text in map(_split, settings.control_vector))
    for file, _ in lora:
        validate_adapter(Path(file), model)
    for file, _ in vectors:
        _check_control_vector(Path(file), model)
    return Attachments(lora, vectors, _draft_path(settings))


def _check_control_vector(path: Path, model: Path) -> None:
    from quantizer.gguf.control_vector import read_control_vector  # imports numpy, 0.3 s

    read_control_vector(path, model)


def _draft_path(settings: Settings) -> str:
    if not settings.draft:
        return ""
    path = resolve(settings.draft, settings).path
    validate_gguf(path)
    return str(path)


def _split(text: str) -> tuple[Path, str]:
    """Return the absolute path and the text after its last `=`; a file name may contain one."""
    whole = absolute(text)
    before, _, after = text.rpartition("=")
    return (whole, "") if not before or whole.exists() else (absolute(before), after)


def _scale(text: str) -> float:
    try:
        scale = float(text or 1.0)
    except ValueError:
        scale = math.nan
    if not abs(scale) <= MAX_SCALE:  # false for NaN too
        cause = f"The scale {text!r} of a control vector is not a number up to {MAX_SCALE:g}."
        raise UsageError(cause, "Use FILE=0.8.")
    return scale
