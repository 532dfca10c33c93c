"""The interface of a model that turns texts into vectors, and the pooling of the vectors of tokens.

Two implementations ship: `app.engine.llama`, with a context of its own beside that of the answers, and
`app.engine.fake`. Independent of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from quantizer.gguf.header import Header

__all__ = ["Embedder", "EmbedderFacts", "Pooling", "Vector", "normalized", "pooled", "pooling_of"]

Vector = NDArray[np.float32]


class Pooling(IntEnum):
    """How the vectors of tokens become one; the values are llama.cpp's `llama_pooling_type`."""

    MEAN = 1
    CLS = 2  # the first token's
    LAST = 3
    RANK = 4  # a head that scores how well a document answers a query


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """The sizes of an embedder: texts of at most `n_ctx` tokens, `n_batch` tokens of `n_sequences` texts at once.

    `n_dimensions` is the length of a vector; a ranker puts its score first. Without `can_split` a text must be computed
    as a whole, since its tokens attend to later ones.
    """

    n_ctx: int
    n_batch: int
    n_sequences: int
    n_dimensions: int
    pooling: Pooling
    can_split: bool


class Embedder(Protocol):
    """A model with a cache for unfinished texts. All calls come from one thread."""

    @property
    def facts(self) -> EmbedderFacts: ...

    def pair(self, query: str, document: str) -> list[int]:
        """Return the tokens of both in the form that the model was trained to rank."""
        ...

    def compute(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute `chunks` as one batch; return the pooled vector of each, shape (n_chunks, n_dimensions).

        Raises EngineError when the batch cannot be computed; then all unfinished texts are lost.
        """
        ...

    def forget(self, sequence_id: int) -> None:
        """Free the cells of a text."""
        ...

    def close(self) -> None: ...


def pooling_of(header: Header) -> Pooling:
    """Return the pooling of the model in this file by its metadata, the mean by default."""
    declared = header.integer(f"{header.architecture}.pooling_type") or 0
    return Pooling(declared) if declared in set(Pooling) else Pooling.MEAN


def pooled(pooling: Pooling, before: Vector, n_before: int, new: Vector, n_new: int) -> Vector:
    """Return the vector of `n_before` + `n_new` tokens from the pooled vectors of both parts."""
    return _JOIN[pooling](before, n_before, new, n_new) if n_before else new


def normalized(vector: Vector) -> Vector:
    """Return `vector` with L2 norm 1; a zero vector is unchanged."""
    length = float(np.linalg.norm(vector))
    return vector if length == 0.0 else (vector / np.float32(length)).astype(np.float32)


def _mean(before: Vector, n_before: int, new: Vector, n_new: int) -> Vector:
    total = before * np.float32(n_before) + new * np.float32(n_new)
    return (total / np.float32(n_before + n_new)).astype(np.float32)


_JOIN: dict[Pooling, Callable[[Vector, int, Vector, int], Vector]] = {
    Pooling.MEAN: _mean,
    Pooling.CLS: lambda before, _n_before, _new, _n_new: before,
    Pooling.LAST: lambda _before, _n_before, new, _n_new: new,
    Pooling.RANK: lambda _before, _n_before, new, _n_new: new,
}
