"""What sentence-transformers puts behind a model that turns texts into vectors: the pooling, then linear modules.

Owns reading modules.json and the folders it names, and the refusal of what llama.cpp would leave out or compute
otherwise. Vectors get length one in the engine, so that a Normalize module needs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.safetensors import as_object, read_json, read_weights
from quantizer.convert.source_model import FileTensor

_MODULES = "modules.json"
# llama.cpp's numbers, by the names of sentence-transformers 5.1 and later and by the flags of earlier ones
_TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_POOLING, _DENSE = "Pooling", "Dense"
_KINDS = ("Transformer", _POOLING, "Normalize")
_WEIGHT = "linear.weight"


@dataclass(frozen=True, slots=True)
class EmbeddingModules:
    """The modules of a folder as llama.cpp has them: rows of metadata, and tensors under names of gguf's map."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, FileTensor] = field(default_factory=dict)


def read_embedding_modules(folder: Path, config: Config, dense_names: Sequence[str] = ()) -> EmbeddingModules:
    """Return what the folder's modules.json says; nothing where there is none.

    The linear modules become `dense_names`: all of them, or none where the folder has none. Raises CheckpointError for
    a pooling that llama.cpp does not have, for several at once, and for other modules behind it.
    """
    if not (folder / _MODULES).exists():
        return EmbeddingModules()
    modules = list(_modules(folder))
    _check_kinds([kind for kind, _ in modules], len(dense_names))
    path = next((path for kind, path in modules if kind == _POOLING), None)
    numbers = {} if path is None else {"pooling_type": _TYPES[_mode(_settings(folder, path))]}
    tensors: dict[str, FileTensor] = {}
    width = config.integer("hidden_size")
    dense = [path for kind, path in modules if kind == _DENSE]
    for name, path in zip(dense_names, dense, strict=False):
        tensor = _dense(folder, path, width)
        numbers |= {f"{name}_feat_in": width, f"{name}_feat_out": (width := tensor.shape[1])}
        tensors[f"{name}_out.weight"] = replace(tensor, name=f"{name}_out.weight")
    if width != config.integer("hidden_size"):
        raise CheckpointError(
            f"The last Dense module gives {width} numbers, llama.cpp those of the hidden size.",
            "Choose another embedding model.",
        )
    return EmbeddingModules(numbers, tensors)


def _check_kinds(kinds: Sequence[str], n_dense: int) -> None:
    """Raise CheckpointError for a module that llama.cpp leaves out, and for linear modules before the pooling."""
    behind = kinds[kinds.index(_POOLING) :] if _POOLING in kinds else []
    is_known = kinds.count(_DENSE) == behind.count(_DENSE) == n_dense
    odd = next((kind for kind in kinds if kind not in _KINDS and not (kind == _DENSE and is_known)), None)
    if odd is not None:
        raise CheckpointError(
            f"The model passes its vectors through a {odd[:64]} module, which llama.cpp leaves out.",
            "Choose another embedding model.",
        )


def _dense(folder: Path, name: str, width: int) -> FileTensor:
    """Return the weight of the linear module in the folder `name`, which gets vectors of `width` numbers."""
    settings = _settings(folder, name)
    activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]  # the default of the module
    tensors = read_weights(folder / name, "model.safetensors", folder)
    if activation != "Identity" or set(tensors) != {_WEIGHT}:
        raise CheckpointError(
            f"The Dense module {name} is more than one matrix, which is all that llama.cpp computes.",
            "Choose another embedding model.",
        )
    weight, n_out = tensors[_WEIGHT], Config(settings).integer("out_features")
    if weight.shape != (width, n_out):
        found = " × ".join(map(str, reversed(weight.shape)))
        raise CheckpointError(
            f"The Dense module {name} has {found} weights, where {n_out} × {width} are needed.",
            "Download the checkpoint again.",
        )
    return weight


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
    return as_object(read_json(folder / name / "config.json"), f"{name}/config.json")


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
