"""Prompts with pictures and sounds: texts and layouts become one sequence of tokens with chunks at known places. Pure.

Owns where each chunk stands, and where a prefix may end: never inside of a chunk, whose tokens share positions or
attend to each other. Independent of who tokenizes and who encodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.engine.media.chunks import MediaChunk, MediaLayout, is_placeholder, placeholder_tokens
from app.engine.quoted import Spans, spans_within


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
    """Return the tokens of `prompt`, in which each marker of `layouts` becomes that layout.

    `tokenize(text, is_first, quoted)` tokenizes the texts between them, each with its `quoted` parts; the first one
    also gets what begins a prompt.
    """
    place = 0
    tokens = tokenize("", True, ()) if _begins_with_marker(prompt, layouts) else []
    chunks: list[PlacedChunk] = []
    for part in _parts(prompt, layouts):
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
    """Return how many of the first `n_tokens` of a prompt can be used without cutting a chunk in two.

    Chunks that follow each other without text between them count as one.
    """
    if not (0 < n_tokens < len(tokens) and is_placeholder(tokens[n_tokens])):
        return n_tokens
    while n_tokens and is_placeholder(tokens[n_tokens - 1]):
        n_tokens -= 1
    return n_tokens


def _parts(prompt: str, layouts: Mapping[str, MediaLayout]) -> list[str]:
    """Return the texts of `prompt` and the markers between them."""
    if not layouts:
        return [prompt]
    return re.split(f"({'|'.join(map(re.escape, layouts))})", prompt)


def _begins_with_marker(prompt: str, layouts: Mapping[str, MediaLayout]) -> bool:
    return any(prompt.startswith(marker) for marker in layouts)
