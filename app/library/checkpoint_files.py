"""Which files of a repository make up a checkpoint that can be converted. Pure.

Owns that choice: weights once, in safetensors, and whatever small files the converter may read.
"""

from __future__ import annotations

import re

from app.library.repository import RepoFile, Repository
from quantizer.errors import CheckpointError

__all__ = ["checkpoint_files"]

_CONFIG = "config.json"
_WEIGHTS = re.compile(r"(gptq_)?model(-[\w.-]+)?\.safetensors")  # others, such as consolidated.*, are the same again
_SETTINGS = (".json", ".jinja", ".txt", ".model", ".md")
_MAX_SETTINGS_BYTES = 256 << 20
_MAX_DEPTH = 2


def checkpoint_files(repository: Repository) -> tuple[RepoFile, ...]:
    """Return the files, config.json first. Raises CheckpointError where there is none, or weights in pickles only."""
    wanted = [file for file in repository.files if _is_weights(file) or _is_settings(file)]
    config = next((file for file in wanted if file.path == _CONFIG), None)
    if config is None:
        raise CheckpointError(f"{repository.id} is no checkpoint: it has no {_CONFIG}.", "Look for the original model.")
    if not any(map(_is_weights, wanted)):
        raise CheckpointError(
            f"{repository.id} has no weights in safetensors.",
            "Pickles can run code when read, so they are not: look for one in safetensors, or a GGUF.",
        )
    return (config, *(file for file in wanted if file is not config))


def _is_weights(file: RepoFile) -> bool:
    return bool(_WEIGHTS.fullmatch(file.path))


def _is_settings(file: RepoFile) -> bool:
    is_near = file.path.count("/") < _MAX_DEPTH
    return is_near and file.path.endswith(_SETTINGS) and file.n_bytes <= _MAX_SETTINGS_BYTES
