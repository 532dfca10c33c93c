"""A deterministic embedder without native code: a token's vector is random, drawn from the tokens up to it.

It follows the rules of the real one and asserts where llama.cpp would abort. Independent of calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.engine.backend import Chunk
from app.engine.embedding.embedder import EmbedderFacts, Pooling, Vector

__all__ = ["FakeEmbedder"]

_N_DIMENSIONS = 8


class FakeEmbedder:
    """An `Embedder` over the bytes of texts."""

    def __init__(
        self,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_sequences: int = 8,
        pooling: Pooling = Pooling.MEAN,
        can_split: bool = True,
    ) -> None:
        n_dimensions = 1 if pooling is Pooling.RANK else _N_DIMENSIONS
        self.facts = EmbedderFacts(
            n_ctx, n_batch if can_split else max(n_batch, n_ctx), n_sequences, n_dimensions, pooling, can_split
        )
        self._cells: dict[int, list[int]] = {}

    @property
    def n_cells_used(self) -> int:
        return sum(len(cells) for cells in self._cells.values())

    def pair(self, query: str, document: str) -> list[int]:
        return list(f"{query}\n{document}".encode("utf-8", "replace"))

    def compute(self, chunks: Sequence[Chunk]) -> Vector:
        """Return the pooled vectors of `chunks`, shape (n_chunks, n_dimensions)."""
        assert 0 < sum(len(chunk.tokens) for chunk in chunks) <= self.facts.n_batch, "the batch fits n_batch"
        assert len({chunk.sequence_id for chunk in chunks}) == len(chunks), "each text is in a batch once"
        assert all(0 <= chunk.sequence_id < self.facts.n_sequences for chunk in chunks), "each text has a place"
        return np.stack([self._pooled(chunk) for chunk in chunks])

    def forget(self, sequence_id: int) -> None:
        self._cells.pop(sequence_id, None)

    def close(self) -> None:
        self._cells = {}

    def _pooled(self, chunk: Chunk) -> Vector:
        cells = self._cells.setdefault(chunk.sequence_id, [])
        assert chunk.position == len(cells), "a text is computed without gaps"
        vectors = []
        for token in chunk.tokens:
            cells.append(token)
            vectors.append(np.random.default_rng(cells).normal(size=self.facts.n_dimensions).astype(np.float32))
        if self.facts.pooling is Pooling.MEAN:
            mean: Vector = np.mean(vectors, axis=0, dtype=np.float32)
            return mean
        return vectors[0] if self.facts.pooling is Pooling.CLS else vectors[-1]
