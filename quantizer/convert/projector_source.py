"""The projector of a checkpoint as the source of a GGUF of its own: the towers that see and hear, and what follows.

Owns the choice of their tensors and the reading of how pictures and sounds are prepared. As in `checkpoint_source`, no
weight is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantizer.architectures.projectors import Projector, find_projector, projectors_for
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.checkpoint.safetensors import Checkpoint, as_object, read_checkpoint, read_object
from quantizer.convert.source_model import FileTensor, SourceModel, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.header import Entry, encode_entry
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.type_rules import ModelShape, allows_quantization
from quantizer.tokenizers import read_vocabulary

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_EMBEDDINGS = ".embed_tokens.weight"
_NESTED = ("image_processor", "media_proc_cfg", "feature_extractor", "audio_processor")


def open_projector(folder: Path, pending: Mapping[str, PendingFile] = NO_PENDING) -> SourceModel | None:
    """Return llama.cpp's form of the projector in a checkpoint; None where there is none, or none of a known class. The
    types of `unquantized` are those of tensors that stay plain in a quantized file. Raises CheckpointError with what
    cannot be converted."""
    known = projectors_for(read_object(folder / "config.json"))
    if not known:
        return None
    checkpoint = unpack_checkpoint(read_checkpoint(folder, pending))
    towers = [tower for projector in known if (tower := _tower(projector, checkpoint, folder))]
    if not towers:
        return None
    tensors = [tensor for tower in towers for tensor in tower.tensors]
    name = folder.resolve().name
    unquantized = {}
    for tower in towers:
        for tensor in tower.tensors:
            if not allows_quantization(tensor.name, tensor.shape, tower.projector.gguf_name):
                unquantized[tensor.name] = tensor_type_named("F32")
            elif tensor.name in tower.projector.plain:
                unquantized[tensor.name] = tensor_type_named("F16")
    return SourceModel(
        name,
        tuple(_entries(name, folder, towers, tensors)),
        tensors,
        ModelShape(towers[0].projector.gguf_name, towers[0].config.integer("num_hidden_layers")),
        unquantized,
        (),
        warnings=tuple(warning for tower in towers for warning in tower.projector.approximations(tower.config)),
    )


@dataclass(frozen=True, slots=True)
class _Tower:
    """One of the towers of a checkpoint: its entry, its settings, its tensors in the order of the file."""

    projector: Projector
    config: Config
    tensors: Sequence[SourceTensor]


def _tower(known: Projector, checkpoint: Checkpoint, folder: Path) -> _Tower | None:
    own = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.removeprefix("model.").startswith(known.modules)
    }
    if not own:
        return None
    projector, config = find_projector(known, checkpoint.config, _read_processor(folder))
    tensors = map_tensors({**own, **_token_rows(checkpoint, config, projector)}, config, projector)
    return _Tower(projector, config, tuple(tensors.values()))


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
            raise CheckpointError(
                f"The checkpoint has no embedding for the token {text}.", "Download the whole checkpoint."
            )
        rows[name] = replace(table.rows(ids[text], ids[text] + 1), name=name, shape=table.shape[:1])
    return rows


def _entries(name: str, folder: Path, towers: Sequence[_Tower], tensors: Collection[SourceTensor]) -> Iterator[Entry]:
    from quantizer.convert.checkpoint_source import general_entries  # reads the model card through gguf, slow to import

    yield from general_entries(name, folder, towers[0].projector.gguf_name, tensors, kind="mmproj")
    for tower in towers:
        projector = tower.projector
        # libmtmd looks for the kind of each only where there is none of all
        kind = "projector_type" if len(towers) == 1 else f"{projector.encoder}.projector_type"
        yield encode_entry(f"clip.has_{projector.encoder}_encoder", True, "bool")
        yield encode_entry(f"clip.{kind}", projector.kind, "str")
        for row in projector.hyperparameters:
            value = row.read(tower.config)
            if value is not None:
                yield encode_entry(f"{projector.gguf_name}.{row.key}", value, row.type_name)


def _read_processor(folder: Path) -> dict[str, Any]:
    """Return how pictures and sounds are prepared, from either of two files; what the newer one says counts."""
    found = [name for name in _PROCESSOR_FILES if (folder / name).exists()]
    if not found:
        raise CheckpointError(
            f"{_PROCESSOR_FILES[0]} is missing, which describes how images and audio are prepared.",
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
