"""Where a model lies in the library by the name that it is given: publisher/repo/file, or parts of that. Pure.

Owns the way from a name to a path, which never leaves the models folder. Knows nothing of what is there.
"""

from __future__ import annotations

import re
from pathlib import Path

from app.library.model_ref import ModelRef
from app.library.safe_name import is_safe_name
from quantizer.errors import UsageError
from quantizer.shards import unsplit_name

__all__ = ["place_for"]

_LOCAL = "local"  # the publisher of what comes from nobody
_MAX_CHARACTERS = 96
_STRANGE = re.compile(r"[^\w.+-]+")


def place_for(source: ModelRef, wanted: str, models_dir: Path) -> Path:
    """Return the path for `source` under the name `wanted`: FILE, PUBLISHER/REPO or PUBLISHER/REPO/FILE.

    Without one, it is called as it is where it comes from. Raises UsageError for a name that is none.
    """
    file = _cleaned(source.id if source.path.suffix != ".gguf" else unsplit_name(source.path.name))
    publisher, _, repo = source.repo.partition("/")
    match [part.removesuffix(".gguf") for part in wanted.split("/")] if wanted else []:
        case []:
            names = [_cleaned(publisher) if repo else _LOCAL, _cleaned(repo) if repo else file, file]
        case [name]:
            names = [_LOCAL, name, name]
        case [publisher, repo]:
            names = [publisher, repo, file]
        case names:
            pass
    if len(names) != 3 or not all(map(is_safe_name, names)):
        cause = f"{wanted!r} is no name for a model."
        raise UsageError(cause, "Give NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME.")
    return models_dir / names[0] / names[1] / f"{names[2]}.gguf"


def _cleaned(text: str) -> str:
    """What somebody else's name becomes: the last of its parts, other characters as dashes."""
    name = _STRANGE.sub("-", text.rpartition("/")[2].removesuffix(".gguf")).strip(".-+")[:_MAX_CHARACTERS].rstrip(".")
    return name if is_safe_name(name) else "model"
