"""Checkpoints of models that see, from outlines alone: random weights, written with numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from quantizer.architectures.projectors import projectors_for
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.checkpoints import tokenizer, write_checkpoint

__all__ = ["PROJECTOR_OUTLINES", "headers", "write_seeing"]

_FOLDER = Path(__file__).parent
_OUTLINES: dict[str, dict[str, Any]] = json.loads((_FOLDER / "outlines.json").read_text())
PROJECTOR_OUTLINES: dict[str, dict[str, Any]] = json.loads((_FOLDER / "projector_outlines.json").read_text())


def headers(tensors: dict[str, list[int]]) -> dict[str, FileTensor]:
    """Tensors as a checkpoint's headers give them; there are no weights to read."""
    nothing, stored = LocalFile(Path("nothing"), 0), tensor_type_named("F32")
    return {name: FileTensor(name, tuple(shape)[::-1], stored, nothing, 0) for name, shape in tensors.items()}


def write_seeing(folder: Path, name: str, *, has_tower: bool = True) -> Path:
    """Write the whole checkpoint of the outline `name` into `folder`, which is made."""
    seeing = PROJECTOR_OUTLINES[name]
    towers = seeing["tensors"]
    shapes = {tensor: shape for tensor, shape in _OUTLINES[name]["tensors"].items() if tensor not in towers}
    shapes |= towers if has_tower else {}
    rng = np.random.default_rng(5)
    weights = {tensor: ("F32", rng.standard_normal(shape, np.float32)) for tensor, shape in shapes.items()}
    write_checkpoint(folder, seeing["config"], weights)
    (folder / "preprocessor_config.json").write_text(json.dumps(seeing["processor"]))
    texts = [text for known in projectors_for(seeing["config"]) for text in known.token_rows.values()]
    (folder / "tokenizer.json").write_text(json.dumps(_with_tokens(texts)))
    return folder


def _with_tokens(texts: list[str]) -> dict[str, Any]:
    """The tokenizer of all tests with more tokens."""
    tokens = tokenizer()
    *_, last = tokens["added_tokens"]
    more = [last | {"id": last["id"] + 1 + i, "content": text} for i, text in enumerate(texts)]
    return tokens | {"added_tokens": [*tokens["added_tokens"], *more]}
