"""The projector of a checkpoint as the source of a GGUF of its own: the tower that sees, and what follows it.

Owns the choice of its tensors and the reading of how pictures are prepared. As in `checkpoint_source`, no weight is
read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantizer.architectures.projectors import Projector, find_projector, projector_for
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.checkpoint.safetensors import Checkpoint, as_object, read_checkpoint, read_object
from quantizer.convert.source_model import FileTensor, SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.errors import CheckpointError
from quantizer.gguf.header_encoder import Entry, encode_entry
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.tensor_categories import allows_quantization
from quantizer.mix.type_rules import ModelShape
from quantizer.tokenizers import read_vocabulary

__all__ = ["open_projector"]

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_EMBEDDINGS = ".embed_tokens.weight"
_NESTED = ("image_processor", "media_proc_cfg")


def open_projector(folder: Path, pending: Mapping[str, PendingFile] = NO_PENDING) -> SourceModel | None:
    """Return llama.cpp's form of the projector in a checkpoint; None where there is none, or none of a known class.

    The types of `unquantized` are those of tensors that stay plain in a quantized file. Raises CheckpointError with
    what cannot be converted.
    """
    known = projector_for(read_object(folder / "config.json"))
    if known is None:
        return None
    checkpoint = unpack_checkpoint(read_checkpoint(folder, pending))
    own = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.removeprefix("model.").startswith(known.modules)
    }
    if not own:
        return None
    projector, config = find_projector(known, checkpoint.config, _read_processor(folder))
    tensors = map_tensors({**own, **_token_rows(checkpoint, config, projector)}, config, projector)
    name = folder.resolve().name
    return SourceModel(
        name,
        tuple(_entries(name, folder, config, projector, tensors.values())),
        list(tensors.values()),
        ModelShape(projector.gguf_name, config.integer("num_hidden_layers")),
        {name: tensor_type_named(kind) for name, kind in _kept_types(projector, tensors.values())},
        (),
        warnings=projector.approximations(config),
    )


def _token_rows(checkpoint: Checkpoint, config: Config, projector: Projector) -> dict[str, FileTensor]:
    """Return the rows of the language model's embeddings that are part of the projector, by llama.cpp's names."""
    if not projector.token_rows:
        return {}
    table = next((tensor for name, tensor in checkpoint.tensors.items() if name.endswith(_EMBEDDINGS)), None)
    ids = {
        token.text: i for i, token in enumerate(read_vocabulary(checkpoint.folder, config.section("language")).tokens)
    }
    rows = {}
    for name, text in projector.token_rows.items():
        if table is None or len(table.shape) != 2 or not ids.get(text, table.shape[1]) < table.shape[1]:
            raise CheckpointError(f"The checkpoint has no embedding of {text}.", "Download the whole checkpoint.")
        rows[name] = replace(table.rows(ids[text], ids[text] + 1), name=name, shape=table.shape[:1])
    return rows


def _kept_types(projector: Projector, tensors: Collection[SourceTensor]) -> Iterator[tuple[str, str]]:
    for tensor in tensors:
        if not allows_quantization(tensor.name, tensor.shape, projector.gguf_name):
            yield tensor.name, "F32"
        elif tensor.name in projector.plain:
            yield tensor.name, "F16"


def _entries(
    name: str, folder: Path, config: Config, projector: Projector, tensors: Collection[SourceTensor]
) -> Iterator[Entry]:
    from quantizer.convert.metadata import general_entries  # reads the model card through gguf, slow to import

    yield from general_entries(name, folder, projector.gguf_name, tensors, kind="mmproj")
    yield encode_entry("clip.has_vision_encoder", True, "bool")
    yield encode_entry("clip.projector_type", projector.kind, "str")
    for row in projector.hyperparameters:
        value = row.read(config)
        if value is not None:
            yield encode_entry(f"{projector.gguf_name}.{row.key}", value, row.type_name)


def _read_processor(folder: Path) -> dict[str, Any]:
    """Return how pictures are prepared, from either of two files; what the newer one says counts."""
    found = [name for name in _PROCESSOR_FILES if (folder / name).exists()]
    if not found:
        raise CheckpointError(
            f"There is no {_PROCESSOR_FILES[0]}, which says how pictures are prepared.",
            "Download the whole checkpoint.",
        )
    settings: dict[str, Any] = {}
    for name in found:
        own = read_object(folder / name)
        nested = (as_object(own[key], f"{key} of {name}") for key in _NESTED if own.get(key) is not None)
        settings |= own
        for values in nested:
            settings |= values
    return settings
