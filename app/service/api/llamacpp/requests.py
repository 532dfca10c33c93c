"""llama-server's request bodies for text, and the engine requests made of them.

Owns field names and defaults. Knows nothing of responses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictStr

from app.engine.grammar.json_grammar import JsonFormat
from app.engine.request import Request
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.prompt_forms import PromptField
from app.service.api.text_request import GenerationBody
from app.service.infill.fim_request import FimRequest, Snippet

MAX_ANSWERS = 8
MAX_COMPLETIONS = 64  # of all prompts of a request
MAX_SNIPPETS = 256


class LlamaCppTextBody(GenerationBody):
    """The fields that /completion and /infill share. `n_cmpl` is limited to MAX_ANSWERS."""

    n_predict: int | None = None
    max_tokens: int | None = None
    n_cmpl: Annotated[int, Field(ge=1)] | None = None
    n_probs: int | None = None
    n_indent: int | None = None
    json_schema: Any = None
    response_fields: list[StrictStr] | None = None
    return_tokens: bool | None = None

    def requests(self, *prompts: str | tuple[int, ...]) -> tuple[Request, ...]:
        """Return the engine's requests for `prompts`. Raises RequestError for none, too many, and values out of range.

        The events of a stream have tokens in any case (source: llama-server's README).
        """
        n_answers = min(self.n_cmpl or 1, MAX_ANSWERS)
        if not 1 <= len(prompts) * n_answers <= MAX_COMPLETIONS:
            cause = f"The request has {len(prompts)} prompts with {n_answers} answers each."
            raise RequestError(cause, f"Ask for 1 to {MAX_COMPLETIONS} texts in all.")
        n_indent, returns_tokens = self.n_indent or 0, bool(self.return_tokens or self.stream)
        requests = (
            replace(self.request(prompt), n_indent=n_indent, returns_tokens=returns_tokens) for prompt in prompts
        )
        return tuple(variant for request in requests for variant in request.variants(n_answers))

    def _limit(self) -> int | None:
        return self.max_tokens if self.n_predict is None else self.n_predict

    def _n_logprobs(self) -> int | None:
        return self.n_probs or None

    def _text_format(self) -> JsonFormat | None:
        return None if self.json_schema is None else JsonFormat(self.json_schema)


class PromptBody(LlamaCppTextBody, PromptField):
    """The body of /completion."""


class SnippetBody(Body):
    """A part of another file."""

    text: StrictStr = ""
    filename: StrictStr = ""

    def snippet(self) -> Snippet:
        return Snippet(self.text, self.filename) if self.filename else Snippet(self.text)


class InfillBody(LlamaCppTextBody):
    """The body of /infill: `prompt` is the text typed behind the prefix."""

    input_prefix: StrictStr = ""
    input_suffix: StrictStr = ""
    input_extra: Annotated[list[SnippetBody], Field(max_length=MAX_SNIPPETS)] | None = None
    prompt: StrictStr | None = None

    @property
    def fim_request(self) -> FimRequest:
        return FimRequest(
            prefix=self.input_prefix,
            typed=self.prompt or "",
            suffix=self.input_suffix,
            snippets=tuple(item.snippet() for item in self.input_extra or ()),
        )
