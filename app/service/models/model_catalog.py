"""What the files of models say of themselves, for lists of models: read once, for as long as a file stays as it is.

Owns what is kept of a header. Knows nothing of engines or dialects.

The models of this machine that a request may name, whether they are loaded or not, and what their files say.

Owns names and facts. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.library.local.resolve import ModelRef, available, find_by_name, resolve
from app.settings.settings import Settings
from quantizer.errors import ModelFileError
from quantizer.gguf.gguf_reader import ArrayRef, Scalar
from quantizer.gguf.header import Header
from quantizer.gguf.model_info import ModelInfo, read_model_info
from quantizer.gguf.validation import validate_gguf

__all__ = ["FileFacts", "FileFactsCache", "ModelCatalog", "read_facts", "with_served_id"]

_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file that has passed the gate: its card, its metadata but for lists and the chat template, which is apart.

    `identity` are 64 hexadecimal digits that change with the file's name, size or time.
    """

    card: ModelInfo
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
    header = validate_gguf(path)
    metadata = {key: value for key, value in header.metadata.items() if not isinstance(value, ArrayRef)}
    return FileFacts(
        card=read_model_info(header),
        metadata={key: value for key, value in metadata.items() if key != _TEMPLATE},
        chat_template=header.text(_TEMPLATE),
        modified_s=stat.st_mtime,
        identity=_identity(header, stat),
    )


def _identity(header: Header, stat: os.stat_result) -> str:
    return hashlib.sha256(repr((header.path.name, stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()


class FileFactsCache:
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


def with_served_id(ref: ModelRef) -> ModelRef:
    """Return `ref` with the id that clients of the service use."""
    return replace(ref, id=ref.served_as or ref.id)


class ModelCatalog:
    """What `settings` have in their models folder, behind those that `loaded` gives: they may lie anywhere."""

    def __init__(self, settings: Settings, loaded: Callable[[], Sequence[ModelRef]]) -> None:
        self._settings = settings
        self._loaded = loaded
        self._facts = FileFactsCache()

    async def list_models(self) -> tuple[ModelRef, ...]:
        """Return every model that a request may name: the loaded ones first, then the installed ones."""
        loaded = self._loaded()
        paths = {ref.path for ref in loaded}
        installed = await asyncio.to_thread(available, self._settings)
        return (*loaded, *(with_served_id(ref) for ref in installed if ref.path not in paths))

    async def find(self, name: str) -> ModelRef:
        """Return the model that a client calls `name`. Raises UnknownModelError that lists what is here."""
        return find_by_name(name, await self.list_models())

    async def resolve(self, name: str) -> ModelRef:
        """Return what `name` means to a person at this machine, paths too. Raises ModelFileError as `resolve` does."""
        return with_served_id(await asyncio.to_thread(resolve, name, self._settings))

    async def list_with_facts(self) -> list[tuple[ModelRef, FileFacts]]:
        """Return every model that a request may name, with its facts; files that the gate refuses are none."""
        return await self.with_facts(await self.list_models())

    async def with_facts(self, refs: Sequence[ModelRef]) -> list[tuple[ModelRef, FileFacts]]:
        """Return those of `refs` whose files the gate lets through, with their facts; files may have gone meanwhile."""
        found = await asyncio.gather(*(self._facts_or_none(ref) for ref in refs))
        return [(ref, facts) for ref, facts in zip(refs, found, strict=True) if facts]

    async def facts(self, ref: ModelRef) -> FileFacts:
        """Return what the file of `ref` says of itself. Raises ModelFileError when the gate does not let it through."""
        return await self._facts.of(ref.path)

    async def _facts_or_none(self, ref: ModelRef) -> FileFacts | None:
        with contextlib.suppress(ModelFileError):
            return await self.facts(ref)
        return None
