"""What may be taken into the library: a file by its path, or a model of another program by its name."""

from __future__ import annotations

from app.library.elsewhere import elsewhere
from app.library.model_ref import ModelRef
from app.library.resolve import resolve
from app.settings import Settings

__all__ = ["importable"]


def importable(source: str, settings: Settings) -> ModelRef:
    """Return the model that `source` means: a path, or a name that `localllm ls --elsewhere` shows.

    Raises UnknownModelError, ModelFileError.
    """
    ref = resolve(source, settings)
    if ref.repo:
        return ref
    # a path may be another program's file, whose name is a better one
    return next((other for other in elsewhere() if other.path == ref.path), ref)
