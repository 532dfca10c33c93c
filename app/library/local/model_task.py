"""What a model was made for, by its header: text, vectors of texts, the order of texts for a question, or speech; and
which models of the library were made for one of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from app.library.local.model_files import ModelRef, stat_model
from app.library.local.resolve import BUILT_IN, available
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.projector_header import SPEAKING_ARCHITECTURES

ModelTask: TypeAlias = Literal["text", "vectors", "ranking", "speech"]

_RANK = 4  # as a `pooling_type`
_WITH_ENCODER = ("t5", "t5encoder")  # only the encoder runs


def task_of(architecture: str, metadata: Mapping[str, object]) -> ModelTask:
    """Return what a model was made for: those that pool the vectors of tokens, or speak, write no text."""
    if architecture in SPEAKING_ARCHITECTURES:
        return "speech"
    pooling = metadata.get(f"{architecture}.pooling_type")
    if pooling == _RANK:
        return "ranking"
    is_bidirectional = metadata.get(f"{architecture}.attention.causal") is False
    is_encoder = is_bidirectional or architecture in _WITH_ENCODER
    return "vectors" if pooling or is_encoder else "text"


def models_for(task: ModelTask, settings: Settings) -> Iterator[ModelRef]:
    """Yield the models of the library that were made for `task`, the smallest first; reads the header of each file."""
    from quantizer.gguf.validation import validate_gguf

    refs = [ref for ref in available(settings) if ref.place != BUILT_IN]
    for ref in sorted(refs, key=lambda ref: stat_model(ref.path).n_bytes):
        with suppress(ModelFileError):  # damaged, or removed meanwhile
            header = validate_gguf(ref.path)
            if task_of(header.architecture, header.metadata) == task:
                yield ref
