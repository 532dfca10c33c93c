"""Detection of the first run: only the guide is installed, and the welcome was not shown yet.

Owns the marker file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from app.settings.settings import Settings

__all__ = ["is_first_run", "mark_welcome_seen"]

_GUIDE = "guide"
_SEEN = "welcome-seen"


def is_first_run(settings: Settings) -> bool:
    """Return whether to show the welcome: no model was requested or installed, and the marker file is missing."""
    is_plain = settings.model == _GUIDE and not settings.connect
    return is_plain and not _mark(settings).exists() and not any(settings.models_dir.glob("*/*/*.gguf"))


def mark_welcome_seen(settings: Settings) -> None:
    """Create the marker file. If that fails, the welcome appears again, which is harmless."""
    with contextlib.suppress(OSError):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        _mark(settings).touch()


def _mark(settings: Settings) -> Path:
    return settings.data_dir / _SEEN
