"""Vectors of passages that have none, by a model of the service: a batch at a time, each stored when it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from app.knowledge.models import EmbedderIdentity, TextModels, marked_passage
from app.knowledge.store import KnowledgeStore

_BATCH = 32  # a second or two of a small model on two cores: what a kill loses


@dataclass(frozen=True, slots=True)
class EmbedProgress:
    """How many passages of those that had no vector have one now."""

    n_done: int
    n_total: int


async def embed_passages(
    store: KnowledgeStore, models: TextModels, embedder: EmbedderIdentity, n_batch: int = _BATCH
) -> AsyncGenerator[EmbedProgress, None]:
    """Give each passage its vector, and yield how far it is. `embedder` must be the store's (`use_embedder`).
    Cancelling keeps the batches that are stored. Raises StorageError, and the errors of `models`."""
    n_done, n_total, last_id = 0, store.n_without_vector(), 0
    while waiting := store.without_vector(last_id, n_batch):
        texts = [marked_passage(text, embedder.model) for _, text in waiting]
        vectors = await models.embed(texts, embedder.model)
        store.put_vectors(embedder, zip((passage_id for passage_id, _ in waiting), vectors, strict=True))
        last_id, n_done = waiting[-1][0], n_done + len(waiting)
        yield EmbedProgress(n_done, n_total)
