"""Pictures and sounds in a prompt: decoded, then as chunks of embeddings with placeholder tokens. Pure.

The placeholder tokens of a chunk identify its content in the prefix tree. A prefix never ends inside of a chunk, whose
tokens share positions or attend to each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.engine.quoted import Spans, spans_within

if TYPE_CHECKING:  # the processes that decode import this module, and need nothing of requests
    from app.engine.request import MediaInput

Embeddings: TypeAlias = NDArray[np.float32]  # of a chunk, shape (n_tokens, n_embd)

_FIRST_PLACEHOLDER = -(1 << 31)  # the range below -2^30: the prefix cache has small negative numbers of its own
_PLACEHOLDER_RANGE = 1 << 30
MAX_SIDE = 4096  # pixels of a decoded picture; larger ones are scaled down, for projectors take far fewer
MAX_SOUND_S = 30 * 60
MIN_SOUND_S = 0.1  # libmtmd ends the process for a single sample, and reads past the end of a few


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
    """A projector: it turns pictures and sounds into layouts, and chunks of them into embeddings. All calls come from
    one thread, not that of the engine, and may take seconds."""

    def layout(self, media: MediaInput) -> MediaLayout:
        """Return what `media` becomes. Raises RequestError for damaged, too large and unsupported content."""

    def encode(self, chunk: MediaChunk) -> Embeddings:
        """Return the embeddings of a chunk of one of the last layouts. Raises KeyError for a chunk whose content was
        dropped, EngineError when encoding fails or is interrupted."""

    def interrupt(self) -> None:
        """Interrupt the running `encode`, from any thread. A call too early or too late changes nothing."""

    def close(self) -> None: ...


class MediaEmbeddings(Protocol):
    """Where the loop gets embeddings from. Calls come from the engine's thread and return at once."""

    def get(self, chunk: MediaChunk) -> Embeddings | None:
        """Return the embeddings of `chunk`; None while they are computed, which this call begins. Whoever owns this
        wakes the engine when they are there. Raises UserError when they cannot be computed."""


def is_placeholder(token: int) -> bool:
    """Return whether `token` stands for a token of a picture or sound."""
    return token < _FIRST_PLACEHOLDER + _PLACEHOLDER_RANGE


def placeholder_tokens(chunk: MediaChunk) -> list[int]:
    """Return the tokens that stand for `chunk` in a sequence: negative 32-bit numbers that come from its content. The
    same content gives the same tokens, so that the prefix tree and saved states find it."""
    digest = hashlib.shake_256(f"{chunk.content_id}/{chunk.n_tokens}".encode()).digest(4 * chunk.n_tokens)
    numbers = np.frombuffer(digest, "<u4") % _PLACEHOLDER_RANGE
    return [_FIRST_PLACEHOLDER + int(number) for number in numbers]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture of `width` × `height` pixels; `rgb` has three bytes for each, row by row."""

    width: int
    height: int
    rgb: bytes

    def __post_init__(self) -> None:
        assert len(self.rgb) == 3 * self.width * self.height, "every pixel is there"


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound of one channel: its samples at the requested rate, shape (n_samples,)."""

    samples: NDArray[np.float32]


class MediaDecoder(Protocol):
    """A decoder of files. Calls come from one thread and may take seconds. Raises RequestError for damaged, too large
    and unsupported files, EngineError where none can be decoded."""

    def picture(self, data: bytes) -> Picture: ...

    def sound(self, data: bytes, sample_rate: int) -> Sound: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk whose first token is number `begin` of its sequence."""

    begin: int
    chunk: MediaChunk

    @property
    def end(self) -> int:
        return self.begin + self.chunk.n_tokens


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt, placeholders among them, and the chunks that those stand for, in order."""

    tokens: list[int]
    chunks: tuple[PlacedChunk, ...] = ()


def prompt_tokens(
    prompt: str,
    layouts: Mapping[str, MediaLayout],
    tokenize: Callable[[str, bool, Spans], list[int]],
    quoted: Spans = (),
) -> PromptTokens:
    """Return the tokens of `prompt`, in which each marker of `layouts` becomes that layout. `tokenize(text, is_first,
    quoted)` tokenizes the texts between them, each with its `quoted` parts; the first one also gets what begins a
    prompt."""
    place = 0
    # The text before a first marker is empty and would not be tokenized, but what begins every prompt is needed.
    tokens = tokenize("", True, ()) if any(map(prompt.startswith, layouts)) else []
    chunks: list[PlacedChunk] = []
    for part in re.split(f"({'|'.join(map(re.escape, layouts))})", prompt) if layouts else [prompt]:
        if (layout := layouts.get(part)) is not None:
            for piece in layout.parts:
                if isinstance(piece, MediaChunk):
                    chunks.append(PlacedChunk(len(tokens), piece))
                    tokens.extend(placeholder_tokens(piece))
                else:
                    tokens.extend(piece)
        elif part:
            tokens.extend(tokenize(part, not tokens, spans_within(quoted, place, place + len(part))))
        place += len(part)
    return PromptTokens(tokens, tuple(chunks))


def n_whole(tokens: Sequence[int], n_tokens: int) -> int:
    """Return how many of the first `n_tokens` of a prompt can be used without cutting a chunk in two. Chunks that
    follow each other without text between them count as one."""
    if not (0 < n_tokens < len(tokens) and is_placeholder(tokens[n_tokens])):
        return n_tokens
    while n_tokens and is_placeholder(tokens[n_tokens - 1]):
        n_tokens -= 1
    return n_tokens
