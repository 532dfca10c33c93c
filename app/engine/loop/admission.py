"""The admission of requests: a request becomes a sequence, or an error with its reason.

Owns the checks that need the model: tokens, context, adapters, context shifts. Independent of slots and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.engine.backend import Backend
from app.engine.loop.sequence import Sequence
from app.engine.request import Request, adapter_set
from app.engine.speculative.acceptance import Acceptance
from quantizer.errors import ContextOverflowError, RequestError

__all__ = ["Admission"]


class Admission:
    """Factory of sequences for one backend, numbered as they arrive."""

    def __init__(
        self,
        backend: Backend,
        new_acceptance: Callable[[], dict[str, Acceptance]],
        shifts_context: bool,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._facts = backend.facts
        self._new_acceptance = new_acceptance
        self._shifts_context = shifts_context
        self._clock = clock
        self._n_arrived = 0

    def admit(self, request: Request) -> Sequence:
        """Return the sequence of `request`; the caller closes its sampler at the end.

        Raises RequestError for what this model does not support, ContextOverflowError for a prompt that does not fit.
        """
        request = self._with_shift(request)
        if not self._facts.can_generate:
            raise RequestError("This model only embeds or ranks texts; it cannot chat.", "Load a chat model.")
        adapters = adapter_set(self._facts.adapters, request.lora)
        tokens = self._prompt_tokens(request)
        if len(tokens) >= self._facts.n_ctx:
            raise ContextOverflowError(len(tokens), self._facts.n_ctx)
        n_free = self._facts.n_ctx - len(tokens)
        self._n_arrived += 1
        return Sequence(
            request=request,
            arrival=self._n_arrived,
            tokens=tokens,
            n_prompt=len(tokens),
            limit=len(tokens) + (n_free if request.max_tokens is None else min(n_free, request.max_tokens)),
            sampler=self._backend.new_sampler(request.sampling, request.ignore_eos, tokens),
            acceptance=self._new_acceptance(),
            arrived_s=self._clock(),
            visible_tags=self._visible_tags(request),
            adapters=adapters,
        )

    def _visible_tags(self, request: Request) -> dict[int, bytes]:
        """Return the special token of each visible tag that is a single token, with its text."""
        tokenized = ((tag, self._backend.tokenize(tag, False, True)) for tag in request.visible_tags)
        return {tokens[0]: tag.encode() for tag, tokens in tokenized if len(tokens) == 1}

    def _prompt_tokens(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            tokens = self._backend.tokenize(prompt, request.add_special, request.parse_special)
        else:
            tokens = list(prompt)
            if any(not 0 <= token < self._facts.n_vocab for token in tokens):
                raise RequestError("A token id of the prompt is not in the vocabulary.", "Tokenize with this model.")
        if not tokens:
            raise RequestError("The prompt is empty.", "Give at least one token of text.")
        return tokens

    def _with_shift(self, request: Request) -> Request:
        """Return `request` with `context_shift` set, by default to the engine's setting."""
        wants_shift = self._shifts_context if request.context_shift is None else request.context_shift
        if wants_shift and not self._facts.supports_shift:
            raise RequestError("The context of this model cannot be shifted.", "Leave context_shift out.")
        if wants_shift and _never_ends(request):
            cause = "context_shift with ignore_eos needs a token limit, a time limit or a stop string."
            raise RequestError(cause, "Set max_tokens, a time limit or a stop string.")
        return replace(request, context_shift=wants_shift)


def _never_ends(request: Request) -> bool:
    """Whether only the context could end an answer; a grammar ends its own."""
    limits = (request.max_tokens, request.max_time_s, request.max_predict_s)
    is_limited = request.stop or any(limit is not None for limit in limits)
    return request.ignore_eos and not is_limited and not request.sampling.grammar
