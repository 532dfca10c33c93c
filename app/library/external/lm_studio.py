"""The models of LM Studio: `<models>/<publisher>/<repo>/<file>.gguf`, the layout that our own folder has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from app.library.local.model_files import ModelRef, model_paths, repo_of

__all__ = ["models"]

_FOLDERS = (".lmstudio/models", ".cache/lm-studio/models")  # since version 0.3.6, and before


def models(home: Path, environment: Mapping[str, str]) -> Iterator[ModelRef]:  # noqa: ARG001
    """Yield what LM Studio holds for the user whose folder is `home`."""
    for folder in _FOLDERS:
        for path in model_paths(home / folder):
            yield ModelRef(f"{repo_of(path)}/{path.stem}", path, repo_of(path), "LM Studio")
