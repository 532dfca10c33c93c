"""The pooling of a sentence-transformers folder: modules.json, and the settings of its pooling.

Owns the refusal of later modules, which llama.cpp would leave out. The engine scales vectors to length one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quantizer.checkpoint.safetensors import read_json
from quantizer.errors import CheckpointError

__all__ = ["read_pooling"]

_MODULES = "modules.json"
# llama.cpp's numbers, by the names of sentence-transformers 5.1 and later and by the flags of earlier ones
_TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def read_pooling(folder: Path) -> int | None:
    """Return llama.cpp's number for the pooling of the checkpoint in `folder`, None where it has none.

    Raises CheckpointError for another pooling, for several at once, and for layers behind it.
    """
    if not (folder / _MODULES).exists():
        return None
    modules = list(_modules(folder))
    odd = next((kind for kind, _ in modules if kind not in ("Transformer", "Pooling", "Normalize")), None)
    if odd is not None:
        raise CheckpointError(
            f"The model passes its vectors through a {odd[:64]} module, which llama.cpp leaves out.",
            "Choose another embedding model.",
        )
    path = next((path for kind, path in modules if kind == "Pooling"), None)
    return None if path is None else _TYPES[_mode(_settings(folder, path))]


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, folder) of each module; the kind is the last part of a class's name."""
    modules = read_json(folder / _MODULES)
    for module in modules if isinstance(modules, list) else [None]:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise CheckpointError(f"{_MODULES} is not a list of modules.", "Download the checkpoint again.")
        yield kind.rpartition(".")[2], path


def _settings(folder: Path, name: str) -> dict[str, Any]:
    if not _FOLDER.fullmatch(name):
        raise CheckpointError(f"{_MODULES} names the folder {name[:64]!r}, which is no plain name.", "Do not use it.")
    settings = read_json(folder / name / "config.json")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{name}/config.json is not an object.", "Download the checkpoint again.")
    return settings


def _mode(settings: dict[str, Any]) -> str:
    named = settings.get("pooling_mode")
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    modes = [str(named)] if named is not None else [_FLAGS.get(flag, flag) for flag in flags]
    if len(modes) != 1 or modes[0] not in _TYPES:
        raise CheckpointError(
            f"The model pools by {' and '.join(modes)[:128] or 'nothing'}, llama.cpp by one of {', '.join(_TYPES)}.",
            "Choose another embedding model.",
        )
    return modes[0]
