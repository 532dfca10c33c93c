"""What is to be fetched, once it is known: the files of a model or of a checkpoint, where they go, and who checks them.

Owns what a reference comes to when the hub was asked. Knows nothing of fetching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.library.checkpoint_files import checkpoint_files
from app.library.download.connection import Connection
from app.library.inquiry import ask_config, ask_file, ask_repository
from app.library.reference import FileReference, RepoReference, UrlReference
from app.library.remote_file import RemoteFile
from app.library.remote_model import QUICK_RETRIES
from app.library.selection import Choose, select
from offload.model import PlannedModel
from quantizer.checkpoint import read_checkpoint
from quantizer.file_types import FileType
from quantizer.gate import admit
from quantizer.outline import outline_of

__all__ = ["Order", "order_checkpoint", "order_model"]


@dataclass(frozen=True, slots=True)
class Order:
    """`files`, of which the first one tells that all are there, from `source` into `folder`; `reason` is a sentence.

    `check` is given the path of the first file, with the others beside it, and raises a UserError for what is unsound.
    """

    source: str
    files: tuple[RemoteFile, ...]
    folder: Path
    reason: str
    check: Callable[[Path], object]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


async def order_model(
    connection: Connection, reference: RepoReference | FileReference | UrlReference, models_dir: Path, choose: Choose
) -> Order:
    """Return what `reference` means now; `choose` picks among quants. Raises HubError for what cannot be had."""
    if isinstance(reference, UrlReference):
        file = await ask_file(connection, reference.url, reference.name, QUICK_RETRIES)
        folder = models_dir / reference.host / reference.name.removesuffix(".gguf")
        return Order(reference.url, (file,), folder, "It was asked for by its URL.", admit)
    revision = reference.revision if isinstance(reference, FileReference) else ""
    repository = await ask_repository(connection, reference.repo, revision, QUICK_RETRIES)
    choice = await asyncio.to_thread(select, repository, reference, choose)
    files = tuple(repository.remote(file, connection.access) for file in choice.model.files)
    return Order(reference.repo, files, models_dir / reference.repo, choice.reason, admit)


async def order_checkpoint(connection: Connection, repo: str, folder: Path, file_type: FileType) -> Order:
    """Return the checkpoint `repo`, to be made a GGUF of `file_type`; the reason says how large that will be.

    Raises HubError for what cannot be had, CheckpointError for what cannot be converted.
    """
    repository = await ask_repository(connection, repo, "", QUICK_RETRIES)
    files = tuple(repository.remote(file, connection.access, file.path) for file in checkpoint_files(repository))
    outline = outline_of(await ask_config(connection, repo, QUICK_RETRIES), repo)
    n_made = PlannedModel(outline, outline.tensors).quantized(file_type).n_bytes
    reason = f"A {file_type.name} of about {n_made / 1e9:.2f} GB is made of it while it comes."
    return Order(repo, files, folder, reason, lambda config: read_checkpoint(config.parent))
