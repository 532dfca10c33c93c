"""External models: those of Ollama, LM Studio and the Hugging Face cache, which run in place.

Owns the table of programs, and LM Studio's folder, which has the layout of our own:
`<models>/<publisher>/<repo>/<file>.gguf`. Never writes to a program's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.library.external import hugging_face, ollama
from app.library.local.model_files import ModelRef, model_paths, repo_of

__all__ = ["external_models", "home_folder"]

_LM_STUDIO_FOLDERS = (".lmstudio/models", ".cache/lm-studio/models")  # since version 0.3.6, and before


def external_models(environment: Mapping[str, str] = os.environ) -> tuple[ModelRef, ...]:
    """Return every GGUF in a program's usual folder, or the one that `environment` sets; sorted by name.

    Unreadable files and folders are skipped.
    """
    home = home_folder()
    found = (_lm_studio_models(home), hugging_face.models(home, environment), ollama.models(home, environment))
    return tuple(ref for models in found for ref in sorted(models, key=lambda ref: ref.id))


def home_folder() -> Path:
    """Return the user's home folder; for a user without one, a folder that does not exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _lm_studio_models(home: Path) -> Iterator[ModelRef]:
    for folder in _LM_STUDIO_FOLDERS:
        for path in model_paths(home / folder):
            yield ModelRef(f"{repo_of(path)}/{path.stem}", path, repo_of(path), "LM Studio")
