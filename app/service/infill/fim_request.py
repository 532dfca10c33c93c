"""A fill-in-the-middle request in any dialect, as a generation.

Owns how texts become tokens here: a user's file cannot add special tokens to the prompt. Independent of dialects.
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
from app.service.pool.prefill_ahead import BACKGROUND_PRIORITY

__all__ = ["FimRequest", "Snippet", "fim_generation"]

_PROJECT = "project"
_FILE = "filename"


@dataclass(frozen=True, slots=True)
class Snippet:
    """Part of another file, as context."""

    text: str
    file_name: str = _FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class FimRequest:
    """Text is missing between `prefix` plus `typed`, and `suffix`. The last snippet is the most relevant."""

    prefix: str
    suffix: str
    typed: str = ""
    snippets: tuple[Snippet, ...] = ()


async def fim_generation(model: ServedModel, fim: FimRequest, requests: Sequence[Request]) -> Generation:
    """Return the generation of `fim` on `model`: `requests`, which are variants of one, with its prompt.

    Raises RefusedError (501) for a model that was not trained for it.
    """
    tokens = model.file.infill
    if tokens is None:
        cause = f"{model.ref.id} cannot fill in the middle: its vocabulary has no tokens for it."
        raise RefusedError(501, "not_supported", cause, "Use a code model that was trained for it.")
    ready = await model.ready()
    tokens = await _with_bos(model, tokens)
    parts = await _parts(model, fim, tokens)
    n_answer = requests[0].max_tokens
    priority = BACKGROUND_PRIORITY if n_answer == 0 else requests[0].priority
    prompt = infill_prompt(parts, tokens, ready.n_ctx, n_answer)
    return Generation(tuple(replace(request, prompt=prompt, priority=priority) for request in requests))


async def _with_bos(model: ServedModel, tokens: InfillTokens) -> InfillTokens:
    """Return `tokens` without BOS where the engine adds none."""
    with model.in_use() as engine:
        begun = await engine.tokenize("", add_special=True, parse_special=False)
    return tokens if begun[:1] == (tokens.begin,) else replace(tokens, begin=None)


async def _parts(model: ServedModel, fim: FimRequest, tokens: InfillTokens) -> InfillParts:
    """Tokenize the texts of `fim`; `typed` by itself, so that the tokens before it stay the same."""
    has_names = tokens.separator is not None
    snippets = [f"{item.file_name}\n{item.text}" if has_names else f"{item.text}\n\n" for item in fim.snippets]
    texts = (fim.prefix, fim.typed, fim.suffix, f"{_PROJECT}\n", f"{_FILE}\n", *snippets)
    with model.in_use() as engine:
        prefix, typed, suffix, project, file_name, *extras = await asyncio.gather(
            *(engine.tokenize(text, add_special=False, parse_special=False) for text in texts)
        )
    return InfillParts(prefix=prefix + typed, suffix=suffix, extras=extras, project=project, file_name=file_name)
