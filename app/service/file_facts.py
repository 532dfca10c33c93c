"""What the files of models say of themselves, for lists of models: read once, for as long as a file stays as it is.

Owns what is kept of a header. Knows nothing of engines or dialects.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quantizer.card import ModelCard, card_of
from quantizer.errors import ModelFileError
from quantizer.gate import admit
from quantizer.header import Header
from quantizer.wire import ArrayRef, Scalar

__all__ = ["FactsShelf", "FileFacts", "read_facts"]

_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file that has passed the gate: its card, its metadata but for lists and the chat template, which is apart.

    `identity` are 64 hexadecimal digits that change with the file's name, size or time.
    """

    card: ModelCard
    metadata: Mapping[str, Scalar | str]
    chat_template: str
    modified_s: float
    identity: str

    @property
    def only_embeds(self) -> bool:
        """Whether the model is an encoder, which cannot write."""
        return self.metadata.get(f"{self.card.architecture}.attention.causal") is False


def read_facts(path: Path) -> FileFacts:
    """Return the facts of the GGUF at `path`. Raises ModelFileError when the gate does not let it through."""
    stat = path.stat()
    header = admit(path)
    metadata = {key: value for key, value in header.metadata.items() if not isinstance(value, ArrayRef)}
    return FileFacts(
        card=card_of(header),
        metadata={key: value for key, value in metadata.items() if key != _TEMPLATE},
        chat_template=header.text(_TEMPLATE),
        modified_s=stat.st_mtime,
        identity=_identity(header, stat),
    )


def _identity(header: Header, stat: os.stat_result) -> str:
    return hashlib.sha256(repr((header.path.name, stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()


class FactsShelf:
    """Facts by path; a file that changed is read again."""

    def __init__(self) -> None:
        self._facts: dict[Path, tuple[tuple[int, int], FileFacts]] = {}

    async def of(self, path: Path) -> FileFacts:
        """Return the facts of the file at `path`. Raises ModelFileError, for one that is gone too."""
        return await asyncio.to_thread(self._of, path)

    def _of(self, path: Path) -> FileFacts:
        try:
            stat = path.stat()
        except OSError as error:
            raise ModelFileError(f"{path.name} cannot be read: {error.strerror}.", "Name another model.") from error
        state = (stat.st_size, stat.st_mtime_ns)
        kept = self._facts.get(path)
        if kept is None or kept[0] != state:
            kept = self._facts[path] = (state, read_facts(path))
        return kept[1]
