"""Models that other programs hold on this machine, and that run in place: a file a program.

Owns the table of programs. Nothing here writes to their folders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from app.library.external import hugging_face, lm_studio, ollama
from app.library.local.model_files import ModelRef

__all__ = ["elsewhere", "home_folder"]

_PROGRAMS = (lm_studio.models, hugging_face.models, ollama.models)


def elsewhere(environment: Mapping[str, str] = os.environ) -> tuple[ModelRef, ...]:
    """Return every GGUF that a program keeps where it usually does, or where `environment` says; in order of name.

    What cannot be read is not there.
    """
    home = home_folder()
    return tuple(ref for models in _PROGRAMS for ref in sorted(models(home, environment), key=lambda ref: ref.id))


def home_folder() -> Path:
    """Return the user's folder, or where nothing lies for a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")
