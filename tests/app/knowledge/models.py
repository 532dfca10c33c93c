"""Models that tests search with: a text's vector has a dimension for each of a few topics, by the words in it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.knowledge.models import EmbedderIdentity, TextModels
from quantizer.system.errors import EngineError

__all__ = ["EMBEDDER", "TopicModels", "connected", "vector_of"]

EMBEDDER = EmbedderIdentity("topics", 1)
# Words of one meaning, which share no letters with one another.
_TOPICS = (("soup", "broth", "stew"), ("bicycle", "cycling", "velo"), ("rain", "drizzle", "wet"))


def vector_of(text: str) -> bytes:
    """Return a vector of length 1 (float32)."""
    words = text.lower().split()
    counts = [0.1, *(float(sum(word.strip(".,:?") in topic for word in words)) for topic in _TOPICS)]
    length = sum(count * count for count in counts) ** 0.5
    return struct.pack(f"<{len(counts)}f", *(count / length for count in counts))


class TopicModels:
    """`TextModels` without a service; `embedded` has the texts that were sent. They fail with `failure` where it is
    set. The reranker likes short documents."""

    def __init__(self, failure: str = "") -> None:
        self.embedded: list[str] = []
        self.failure = failure

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        if self.failure:
            raise EngineError(self.failure, "Try again.")
        assert model == EMBEDDER.model
        self.embedded += texts
        return [vector_of(text) for text in texts]

    async def rerank(self, query: str, documents: Sequence[str], model: str) -> list[float]:
        if self.failure:
            raise EngineError(self.failure, "Try again.")
        return [-float(len(document)) for document in documents]


@asynccontextmanager
async def connected(models: TextModels) -> AsyncIterator[TextModels]:
    yield models
