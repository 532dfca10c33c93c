"""A fill-in-the-middle request in any dialect, as a generation.

Texts are tokenized without special tokens, so that a user's file cannot inject them. Where a prefix has to be cut, its
own content decides the place, so that the prompt after a keystroke or a line still begins with the cached one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from app.engine.request import READ_AHEAD_PRIORITY, Request
from app.protocol.errors import RequestError
from app.service.generation.generation import Generation
from app.service.models.model_file import InfillTokens
from app.service.models.served_model import ServedModel

MAX_WINDOW = 2048  # tokens of prefix and suffix, as in llama-server
DEFAULT_ANSWER = 256  # tokens reserved for an answer without a limit
_N_SPECIAL = 8  # special tokens, at most
_LEEWAY = 8  # a prefix may be cut by up to 1/8 of its budget more than necessary
_N_MARK = 4  # tokens hashed to choose where a prefix begins
_PROJECT = "project"
_FILE = "filename"

Tokens = tuple[int, ...]


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
    """Return the generation of `fim` on `model`: `requests`, which are variants of one, with its prompt. Raises
    RequestError for a model that was not trained for it."""
    tokens = model.file.infill
    if tokens is None:
        cause = f"{model.ref.id} cannot fill in the middle: its vocabulary has no tokens for it."
        # Not llama-server's 501: clients ask again after a 5xx, which changes nothing.
        raise RequestError(cause, "Use a code model that was trained for it.")
    ready = await model.ready()
    with model.in_use() as engine:
        begun = await engine.tokenize("", add_special=True, parse_special=False)
    if begun[:1] != (tokens.begin,):  # the engine adds no BOS
        tokens = replace(tokens, begin=None)
    parts = await _parts(model, fim, tokens)
    n_answer = requests[0].max_tokens
    priority = READ_AHEAD_PRIORITY if n_answer == 0 else requests[0].priority
    prompt = infill_prompt(parts, tokens, ready.n_ctx, n_answer)
    return Generation(tuple(replace(request, prompt=prompt, priority=priority) for request in requests))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillParts:
    """The texts before and after the missing one, and other files as context, the most relevant last. `project` and
    `file_name` are names in the prompt; each file in `extras` begins with its own."""

    prefix: Tokens
    suffix: Tokens
    extras: Sequence[Tokens] = ()
    project: Tokens = ()
    file_name: Tokens = ()


def infill_prompt(parts: InfillParts, tokens: InfillTokens, n_ctx: int, n_answer: int | None) -> Tokens:
    """Return the prompt for a context of `n_ctx` tokens, with `n_answer` tokens reserved for the answer. The end of the
    prefix gets three quarters of a window, the start of the suffix one quarter; the window is half the context at most.
    Other files share the rest; the least relevant ones are left out whole."""
    window = min(MAX_WINDOW, n_ctx // 2)
    prefix = _end_of(parts.prefix, 3 * window // 4)
    suffix = parts.suffix[: window // 4]
    n_reserved = DEFAULT_ANSWER if n_answer is None else n_answer
    extras = _extras(parts, tokens, n_ctx - window - _N_SPECIAL - min(n_reserved, n_ctx // 4))
    begin = _one(tokens.begin)
    if tokens.is_suffix_first:
        return (*extras, *begin, tokens.suffix, *suffix, tokens.prefix, *prefix)
    return (*extras, *begin, tokens.prefix, *prefix, tokens.suffix, *suffix, *_one(tokens.middle))


def _end_of(prefix: Tokens, limit: int) -> Tokens:
    """Return the end of `prefix`, at most `limit` tokens. Editors send a window of lines that moves with the cursor. So
    the first token is chosen by content: of the allowed places, the one whose tokens have the least hash stays the same
    until it is cut off."""
    n_over = len(prefix) - limit
    if n_over <= 0:
        return prefix
    places = range(n_over, n_over + max(1, limit // _LEEWAY))
    return prefix[min(places, key=lambda place: crc32(repr(prefix[place : place + _N_MARK]).encode())) :]


def _extras(parts: InfillParts, tokens: InfillTokens, n_free: int) -> Tokens:
    """Return the project's name and as many of the other files, counted from the last, as fit into `n_free` tokens."""
    if not parts.extras:
        return ()
    separator = _one(tokens.separator)
    head = (*_one(tokens.repository), *parts.project) if tokens.repository is not None else ()
    tail = (*separator, *parts.file_name) if separator else ()
    kept: list[Tokens] = []
    n_free -= len(head) + len(tail)
    for extra in reversed(parts.extras):
        n_free -= len(separator) + len(extra)
        if n_free < 0:
            break
        kept.append((*separator, *extra))
    if not kept:
        return ()
    return (*head, *(token for extra in reversed(kept) for token in extra), *tail)


def _one(token: int | None) -> Tokens:
    return () if token is None else (token,)
