"""The input of verbs that run a model over a text: the model, the window, and a text of the user or one that ships."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings.settings import load_settings
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from quantizer.gguf.header import Header


_DEFAULT_CTX = 512


def resolve_model(name: str) -> tuple[Path, Header]:
    """Return the file that the model `name` means and its header, validated. Raises UserError."""
    from app.library.local.resolve import resolve
    from quantizer.gguf.validation import validate_gguf

    path = resolve(name, load_settings()).path
    return path, validate_gguf(path)


def window_size(header: Header, requested: int) -> int:
    """Return the tokens per window: `requested`, else the default or what the model was trained on, if less."""
    trained = header.integer(f"{header.architecture}.context_length") or _DEFAULT_CTX
    return requested or min(_DEFAULT_CTX, trained)


def shipped(name: str) -> Path:
    """Return the path of a text in assets/text."""
    return Path(str(files("assets") / "text" / name))


def read_text(path: Path) -> str:
    """Return what `path` holds. Raises UsageError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from error
