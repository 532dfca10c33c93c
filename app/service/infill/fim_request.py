"""A gap in a file -> the engine's request to fill it.

Owns how texts become tokens here: a user's file cannot write special tokens into the prompt. Knows nothing of dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.engine.request import Request
from app.service.generation.generation import Generation
from app.service.http.errors import RefusedError
from app.service.infill.prompt import InfillParts, infill_prompt
from app.service.infill.tokens import InfillTokens
from app.service.models.served_model import ServedModel

__all__ = ["FimRequest", "Snippet", "fim_generation"]

_BACKGROUND = -1  # the priority of what only fills the cache: whoever wants an answer comes first
_PROJECT = "project"
_FILE = "filename"


@dataclass(frozen=True, slots=True)
class Snippet:
    """Part of another file that may help."""

    text: str
    file_name: str = _FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class FimRequest:
    """Where text is missing: between `prefix`, with `typed` at its end, and `suffix`. The last snippet is the best."""

    prefix: str
    suffix: str
    typed: str = ""
    snippets: tuple[Snippet, ...] = ()


async def fim_generation(model: ServedModel, gap: FimRequest, requests: Sequence[Request]) -> Generation:
    """Return the fillings of `gap` by `model`, one for each of `requests`, variants of one whose prompt is made here.

    Raises RefusedError (501) for a model that was not trained to.
    """
    tokens = model.file.infill
    if tokens is None:
        cause = f"{model.ref.id} cannot fill in the middle: its vocabulary has no tokens for it."
        raise RefusedError(501, "not_supported", cause, "Use a code model that was trained to.")
    ready = await model.ready()
    tokens = await _with_begin(model, tokens)
    parts = await _parts(model, gap, tokens)
    n_answer = requests[0].max_tokens
    priority = _BACKGROUND if n_answer == 0 else requests[0].priority
    prompt = infill_prompt(parts, tokens, ready.n_ctx, n_answer)
    return Generation(tuple(replace(request, prompt=prompt, priority=priority) for request in requests))


async def _with_begin(model: ServedModel, tokens: InfillTokens) -> InfillTokens:
    """Return `tokens` without the one that begins texts, where the engine does not begin texts with it."""
    with model.in_use() as engine:
        begun = await engine.tokenize("", add_special=True, parse_special=False)
    return tokens if begun[:1] == (tokens.begin,) else replace(tokens, begin=None)


async def _parts(model: ServedModel, gap: FimRequest, tokens: InfillTokens) -> InfillParts:
    """Tokenize what stands around a gap; what was just typed by itself, so that the tokens before it stay the same."""
    has_names = tokens.separator is not None
    snippets = [f"{item.file_name}\n{item.text}" if has_names else f"{item.text}\n\n" for item in gap.snippets]
    texts = (gap.prefix, gap.typed, gap.suffix, f"{_PROJECT}\n", f"{_FILE}\n", *snippets)
    with model.in_use() as engine:
        prefix, typed, suffix, project, file_name, *extras = await asyncio.gather(
            *(engine.tokenize(text, add_special=False, parse_special=False) for text in texts)
        )
    return InfillParts(prefix=prefix + typed, suffix=suffix, extras=extras, project=project, file_name=file_name)
