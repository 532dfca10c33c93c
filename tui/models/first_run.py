"""Whether a person is new here: nothing but the guide on this machine, and the welcome not seen yet.

Owns the file that says that it was seen. Knows nothing of screens.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from app.settings.settings import Settings

__all__ = ["is_first_run", "mark_welcome_seen"]

_GUIDE = "guide"
_SEEN = "welcome-seen"


def is_first_run(settings: Settings) -> bool:
    """Return whether to welcome: no model was asked for, none was ever placed, and nobody said that it was seen."""
    is_plain = settings.model == _GUIDE and not settings.connect
    return is_plain and not _mark(settings).exists() and not any(settings.models_dir.glob("*/*/*.gguf"))


def mark_welcome_seen(settings: Settings) -> None:
    """Welcome nobody again. Where that cannot be kept, the welcome comes again: no reason to trouble anyone."""
    with contextlib.suppress(OSError):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        _mark(settings).touch()


def _mark(settings: Settings) -> Path:
    return settings.data_dir / _SEEN
