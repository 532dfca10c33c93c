"""The model that a draft head was made for, a checkpoint or a GGUF: what the head's file takes from it.

That is its vocabulary, which the head has too, and a few settings, which become the section "target" of the head's
config. No weight of it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantizer.architectures import find_architecture
from quantizer.architectures.metadata_rows import rope_of
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.safetensors import read_object
from quantizer.convert.source_model import entries_of
from quantizer.gguf.header_encoder import Entry, encode_entry
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import UsageError
from quantizer.tokenizers import read_vocabulary, vocabulary_entries

_VOCABULARY, _MASK = "tokenizer.", "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """A model that is drafted for: its `settings`, its vocabulary as metadata and its tokens' texts, and its files."""

    settings: Mapping[str, Any]
    vocabulary: tuple[Entry, ...]
    tokens: tuple[str, ...]
    inputs: tuple[Path, ...]

    def config_of(self, head: Config) -> Config:
        """Return the config of a head of this model. Raises CheckpointError when their vocabularies differ in size."""
        if head.integer("vocab_size") != len(self.tokens):
            raise CheckpointError(
                f"The head has {head.integer('vocab_size')} tokens, and the model of --base {len(self.tokens)}.",
                "Name the model that the head was made for.",
            )
        return Config({**head.values, "target": dict(self.settings)})

    def vocabulary_of(self, head: Config) -> Iterator[Entry]:
        """Yield the vocabulary's metadata, with the head's own mask token."""
        mask = head.optional_integer("mask_token_id")
        yield from (entry for entry in self.vocabulary if mask is None or entry.key != _MASK)
        if mask is not None:
            yield encode_entry(_MASK, mask, "u32")


def read_target(path: Path | None) -> DraftTarget:
    """Read a checkpoint's folder or the header of a GGUF. Raises UserError with what is missing or wrong."""
    if path is None:
        raise UsageError(
            "A draft head takes its vocabulary from the model that it drafts for.",
            "Name that model's folder or GGUF with --base.",
        )
    if path.is_dir():
        return _of_checkpoint(path)
    if not path.is_file():
        raise UsageError(f"There is no model {path}.", "Name the model's folder or GGUF with --base.")
    return _of_gguf(path)


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return the files of a checkpoint, which no output may replace."""
    return tuple(file for file in folder.iterdir() if file.is_file() and file.suffix != ".gguf")


def _of_checkpoint(folder: Path) -> DraftTarget:
    architecture, config = find_architecture(read_object(folder / "config.json"))
    if architecture.is_draft_head:
        raise UsageError(f"{folder.name} is a draft head too.", "Name the model that it drafts for with --base.")
    vocabulary = read_vocabulary(folder, config)
    settings = {
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "hidden_size": config.integer("hidden_size"),
        "has_rotation_sections": "mrope_section" in rope_of(config).values,
    }
    tokens = tuple(token.text for token in vocabulary.tokens)
    return DraftTarget(settings, tuple(vocabulary_entries(vocabulary)), tokens, files_of(folder))


def _of_gguf(path: Path) -> DraftTarget:
    header = validate_gguf(path)
    settings = {
        "num_hidden_layers": hyperparameter(header, "block_count") - hyperparameter(header, "nextn_predict_layers"),
        "hidden_size": hyperparameter(header, "embedding_length"),
        "has_rotation_sections": f"{header.architecture}.rope.dimension_sections" in header.fields,
    }
    vocabulary = tuple(entry for entry in entries_of(header) if entry.key.startswith(_VOCABULARY))
    tokens = tuple(text.decode("utf-8", "replace") for text in header.strings("tokenizer.ggml.tokens"))
    return DraftTarget(settings, vocabulary, tokens, (path,))
