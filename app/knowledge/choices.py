"""Which folder may be added, which are left out, and which embedding model makes the vectors: the same for the command
line and the app."""

from __future__ import annotations

from pathlib import Path

from app.knowledge.models import EmbedderIdentity
from app.knowledge.store import Folder, KnowledgeStore
from app.settings.settings import Settings
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, is_folder

NO_EMBEDDER = "none"  # as the setting `embedder`: words alone


def own_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of localllm itself, which hold chats and keys, and are never read."""
    return settings.data_dir.resolve(), settings.cache_dir.resolve()


def add_folder(store: KnowledgeStore, path: Path, settings: Settings) -> Folder:
    """Add the folder at `path`, which the holder of `writing_alone` may do, or return it where it was added before.
    Raises UsageError for what is no folder, one of localllm's own, and one inside or around another that was added."""
    if not is_folder(path):
        raise UsageError(f"{path} is not a folder.", "Name a folder of documents.")
    with explained(f"{path} cannot be read"):
        resolved = path.resolve(strict=True)
    if any(resolved.is_relative_to(own) for own in own_folders(settings)):
        raise UsageError(f"{path} is localllm's own folder, with chats and keys.", "Name a folder of documents.")
    return store.add_folder(resolved)


def choose_embedder(before: EmbedderIdentity | None, settings: Settings) -> EmbedderIdentity | None:
    """Return the embedding model that the settings name, else the one that made the vectors `before`, else the smallest
    of the library; None without any. Raises UnknownModelError for a name that is not in the library, UsageError for a
    model that was made for something else."""
    from app.library.local.model_files import stat_model
    from app.library.local.model_task import models_for, task_of
    from app.library.local.resolve import available, find_by_name
    from quantizer.gguf.validation import validate_gguf

    if settings.embedder == NO_EMBEDDER:
        return None
    here = available(settings)
    if settings.embedder:
        ref = find_by_name(settings.embedder, here)
        header = validate_gguf(ref.path)
        if task_of(header.architecture, header.metadata) != "vectors":
            raise UsageError(f"{ref.id} is not an embedding model.", "Name one as `embedder`, or leave it empty.")
    else:
        kept = next((ref for ref in here if before is not None and ref.id == before.model), None)
        found = kept or next(models_for("vectors", settings), None)
        if found is None:
            return None
        ref = found
    return EmbedderIdentity(ref.id, stat_model(ref.path).n_bytes)
