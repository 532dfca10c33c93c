"""Texts that models are run on: a file that the user names, or one that ships with localllm."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from quantizer.errors import UsageError

__all__ = ["read_text", "shipped"]


def shipped(name: str) -> Path:
    """Return the path of a text in assets/text."""
    return Path(str(files("assets") / "text" / name))


def read_text(path: Path) -> str:
    """Return what `path` holds. Raises UsageError when it cannot be read or is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text.", "Save it as UTF-8.") from error
