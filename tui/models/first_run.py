"""Whether the welcome is shown, and the marker that it was. Every start asks, so nothing else is imported for it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from app.settings.settings import GUIDE, Settings
from quantizer.system.files import is_file, private_folder

_SEEN = "welcome-seen"


def is_first_run(settings: Settings) -> bool:
    """Return whether to show the welcome: no model was requested or installed, and the marker file is missing."""
    if settings.model != GUIDE or settings.connect or is_file(_mark(settings)):
        return False
    from app.library.local.model_files import model_paths

    return not model_paths(settings.models_dir)


def mark_welcome_seen(settings: Settings) -> None:
    """Create the marker file. If that fails, the welcome appears again, which is harmless."""
    with suppress(OSError):
        private_folder(settings.data_dir)
        _mark(settings).touch()


def _mark(settings: Settings) -> Path:
    return settings.data_dir / _SEEN
