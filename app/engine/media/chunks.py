"""The values of pictures and sounds in a prompt: chunks of embeddings, their placeholder tokens, and who makes them.

Owns the placeholder tokens of a chunk, which identify its content in the prefix tree, and the protocols between the
loop and what decodes and encodes media. Independent of libmtmd, of files and of threads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.engine.request import MediaInput

Embeddings: TypeAlias = NDArray[np.float32]  # of a chunk, shape (n_tokens, n_embd)

_FIRST_PLACEHOLDER = -(1 << 31)  # the range below -2^30; the cache's own marks are small negative numbers
_PLACEHOLDER_RANGE = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class MediaChunk:
    """A run of `n_tokens` embeddings: a picture, a tile of one, or a part of a sound.

    `content_id` is a hexadecimal SHA-256 of all that decides the embeddings: the file, the projector and its settings,
    and which chunk of the file this is. The next token is `n_positions` further: fewer than `n_tokens` with M-RoPE,
    where `positions` has time, height and width of each token from the chunk's begin, shape (n_tokens, 3), int32; None
    counts them up. A chunk that is not `is_causal` attends to its own later tokens, so it is computed as a whole.
    """

    content_id: str
    n_tokens: int
    n_positions: int
    is_causal: bool = True
    positions: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MediaRows:
    """A part of `chunk` to compute: as many tokens as `embeddings` has rows, from its token number `begin` on."""

    chunk: MediaChunk
    begin: int
    embeddings: Embeddings


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """What a picture or sound becomes in a prompt: token ids of text (marks around it) and chunks, in order."""

    parts: tuple[tuple[int, ...] | MediaChunk, ...]

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens if isinstance(part, MediaChunk) else len(part) for part in self.parts)


class MediaEncoder(Protocol):
    """A projector: it turns pictures and sounds into layouts, and chunks of them into embeddings.

    All calls come from one thread, not that of the engine, and may take seconds.
    """

    def layout(self, media: MediaInput) -> MediaLayout:
        """Return what `media` becomes. Raises RequestError for damaged, too large and unsupported content."""
        ...

    def encode(self, chunk: MediaChunk) -> Embeddings:
        """Return the embeddings of a chunk of one of the last layouts.

        Raises KeyError for a chunk whose content is no longer at hand, EngineError when encoding fails or is
        interrupted.
        """
        ...

    def interrupt(self) -> None:
        """Interrupt the running `encode`, from any thread. A call too early or too late changes nothing."""
        ...

    def close(self) -> None: ...


class MediaEmbeddings(Protocol):
    """What the loop asks for embeddings. Calls come from the engine's thread and return at once."""

    def get(self, chunk: MediaChunk) -> Embeddings | None:
        """Return the embeddings of `chunk`; None while they are computed, which this call begins.

        Whoever owns this wakes the engine when they are there. Raises UserError when they cannot be computed.
        """
        ...


def is_placeholder(token: int) -> bool:
    """Return whether `token` stands for a token of a picture or sound."""
    return token < _FIRST_PLACEHOLDER + _PLACEHOLDER_RANGE


def placeholder_tokens(chunk: MediaChunk) -> list[int]:
    """Return the tokens that stand for `chunk` in a sequence: negative 32-bit numbers that come from its content.

    The same content gives the same tokens, so that the prefix tree and saved states find it.
    """
    digest = hashlib.shake_256(f"{chunk.content_id}/{chunk.n_tokens}".encode()).digest(4 * chunk.n_tokens)
    numbers = np.frombuffer(digest, "<u4") % _PLACEHOLDER_RANGE
    return [_FIRST_PLACEHOLDER + int(number) for number in numbers]
