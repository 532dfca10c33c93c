"""What is said in a sound, as it is recognised: pieces of the text, segments with times, and the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Segment:
    """The text of one window, and where that is in a sound of `length_s` as it declares it (0: not at all).
    `mean_logprob` is that of its `tokens` (natural); both are of segments with details."""

    index: int
    begin_s: float
    end_s: float
    length_s: float
    text: str
    tokens: tuple[int, ...] = ()
    mean_logprob: float = 0.0


@dataclass(frozen=True, slots=True)
class Transcribed:
    """The whole text of a sound, and what it took. `language` is "" where nobody has said it; `warnings` are what the
    service says beside an answer."""

    text: str
    language: str
    length_s: float
    n_prompt_tokens: int
    n_output_tokens: int
    warnings: tuple[str, ...] = ()


# Pieces of the text as they become certain, each segment once it does not change any more, and last the whole.
TranscriptEvent: TypeAlias = str | Segment | Transcribed
