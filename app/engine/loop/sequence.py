"""A request while it is answered: its admission, its tokens, how many of them are computed, its text and its timings.

The mutable state that `app.engine.loop.core` advances. Owns the checks of a request that need the model. Independent of
other sequences and of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from app.common.prompt_pace import PromptPace
from app.engine.backend import Backend, Choice, Chunk, Sampler
from app.engine.cache.prefix_tree import n_common
from app.engine.loop.call_stages import AnswerVocabulary, CallStages
from app.engine.loop.output import AnswerOutput
from app.engine.loop.thought import Thought
from app.engine.media.chunks import Embeddings, MediaLayout, MediaRows, PlacedChunk, PromptTokens, prompt_tokens
from app.engine.quoted import Spans, quoted_tokens
from app.engine.request import NO_ADAPTERS, AdapterSet, FinishReason, Request, Timings, Usage, adapter_set
from app.engine.speculative.cost_model import Acceptance, DraftLedger
from app.engine.speculative.suffix_index import NO_DRAFT, Draft, SuffixIndex
from app.protocol.errors import ContextOverflowError, RequestError

# The first tokens are attention sinks; without them output degrades (arXiv 2309.17453).
MIN_KEPT_TOKENS = 4
NO_LAYOUTS: Mapping[str, MediaLayout] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class TokenChooser:
    """What chooses the next token of one answer: a budget of reasoning, the grammars of tool calls, or the sampler.
    `piece` returns the bytes of a token, those of a special token only where the request wants them as text."""

    sampler: Sampler
    piece: Callable[[int], bytes]
    thought: Thought | None = None
    calls: CallStages | None = None

    @property
    def forced(self) -> Many[int]:
        """The tokens that come next in the answer, whatever the model would sample."""
        if self.thought is not None and self.thought.forced:
            return self.thought.forced
        return () if self.calls is None else self.calls.forced

    def choice(self, row: int) -> Choice:
        """Return what `next` chooses from: one token where it is forced."""
        if forced := self.forced:
            return Choice(np.array([forced[0]], np.int32), np.ones(1))
        return self.sampler.choice(row)

    def next(self, row: int) -> int:
        """Return the token after `row`: the next one that is forced, else a sample. Raises as `Sampler` does."""
        thought, calls = self.thought, self.calls
        if thought is None and calls is None:
            return self.sampler.sample(row)
        was_thought = thought is not None and thought.is_running
        if thought is not None and thought.forced:
            token = thought.forced.popleft()
            self.sampler.accept(token)
        elif calls is not None and calls.forced:
            token = calls.forced.popleft()
            self.sampler.accept(token)
        else:
            token = self.sampler.sample(row) if calls is None else calls.sample(row, is_thought=was_thought)
            if thought is not None:
                thought.observe(self.piece(token))
        if calls is not None:
            calls.follow(token, was_thought=was_thought, is_thought=thought is not None and thought.is_running)
        return token


@dataclass(slots=True, eq=False)
class Drafting:
    """What drafts of one answer were worth: `acceptance` by source, and tokens verified and accepted of all sources.
    `saved_s` is less what making them took, which the `ledger` does not count.
    `probes` are drafts that are only compared with the next sample, to estimate acceptance where drafts do not pay."""

    acceptance: dict[str, Acceptance]
    probes: tuple[Draft, ...] = ()
    n_drafted: int = 0
    n_accepted: int = 0
    saved_s: float = 0.0
    ledger: DraftLedger = field(default_factory=DraftLedger)


@dataclass(slots=True, eq=False)
class AnswerTimes:
    """When the stages of one answer began, in seconds on one monotonic clock; None for those that have not begun."""

    arrived_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_output_s: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request. The first `n_computed` of `tokens` (prompt and answer) are cached under `sequence_id`.

    `sequence_id` is None without a slot. `limit` is the maximum of prompt and answer tokens together. `draft` is
    verified in the next step. Other prompts may leave this one at its `branches`, in tokens; the states at its
    `checkpoints` are saved once these are computed. Tokens of its `media` are placeholders, computed from embeddings.
    The smallest `rank` is served first.
    """

    # As admitted
    request: Request
    arrival: int
    tokens: list[int]
    n_prompt: int
    limit: int
    chooser: TokenChooser
    drafting: Drafting
    times: AnswerTimes
    adapters: AdapterSet = NO_ADAPTERS
    branches: tuple[int, ...] = ()
    media: tuple[PlacedChunk, ...] = ()
    rank: tuple[int, int] = field(init=False)
    output: AnswerOutput = field(init=False)
    # Progress
    sequence_id: int | None = None
    n_computed: int = 0
    n_repeated: int = 0  # accepted tokens that were removed with a rejected draft and are computed again
    n_cached: int = 0  # of the prompt, when it was first scheduled
    n_dropped: int = 0  # of `tokens`, in context shifts
    n_passes: int = 0
    pace: PromptPace | None = None  # of the prompt, from its first step to its last
    checkpoints: tuple[int, ...] = ()
    index: SuffixIndex | None = None  # of `tokens`, once something is looked up in it
    draft: Draft = NO_DRAFT
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.rank = -self.request.priority, self.arrival
        self.output = AnswerOutput.of(self.request, self.tokens)

    @property
    def slot_id(self) -> int:
        """The id of its cached sequence; only while it is running."""
        assert self.sequence_id is not None, "a running sequence has a slot"
        return self.sequence_id

    @property
    def n_output(self) -> int:
        return len(self.tokens) + self.n_dropped - self.n_prompt

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def n_until_stop(self) -> int:
        """How many tokens may be computed before states are saved or a chunk of media begins, at most all pending."""
        n_most = self.n_pending
        if self.checkpoints or self.media:  # most have neither, and this is asked in every step
            stops = (*self.checkpoints, *(placed.begin for placed in self.media))
            n_most = min((place - self.n_computed for place in stops if place > self.n_computed), default=n_most)
        return n_most

    @property
    def next_media(self) -> PlacedChunk | None:
        """The chunk that the next token to compute is part of, None for text."""
        return next((placed for placed in self.media if placed.begin <= self.n_computed < placed.end), None)

    @property
    def namespace(self) -> Hashable:
        """Return what it shares cells with: the sequences of the same adapters and the same owner."""
        return (*self.adapters, self.request.owner) if self.request.owner else self.adapters

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is left to compute, and what a rejected draft took with it. A preempted answer
        is computed again like a prompt."""
        return self.n_pending == 1 + self.n_repeated and self.n_output > 0

    @property
    def is_scoring(self) -> bool:
        """Whether probabilities of prompt tokens are still to be computed."""
        return self.output.echo is not None and self.output.echo.is_scoring

    @property
    def reusable(self) -> list[int]:
        """The tokens that may be taken from the cache, and the one after them."""
        echo = self.output.echo
        return self.tokens if echo is None else self.tokens[: echo.n_reusable + 1]

    def chunk(self, n_tokens: int) -> Chunk:
        """Return the next `n_tokens` to compute; drafts, the newest token and scored prompts get logits."""
        known = self.tokens[self.n_computed : self.n_computed + n_tokens]
        n_draft = n_tokens - len(known)
        is_last = self.n_computed + n_tokens >= len(self.tokens)
        n_logits = n_tokens if self.is_scoring else n_draft + 1 if is_last else 0
        return Chunk(self.slot_id, self.n_computed, [*known, *self.draft.tokens[:n_draft]], n_logits)

    def media_chunk(self, placed: PlacedChunk, embeddings: Embeddings, n_tokens: int) -> Chunk:
        """Return the next `n_tokens` to compute, a part of `placed`, whose `embeddings` are all here."""
        begin = self.n_computed - placed.begin
        rows = MediaRows(placed.chunk, begin, embeddings[begin : begin + n_tokens])
        return replace(self.chunk(n_tokens), media=rows)

    def suffixes(self) -> SuffixIndex:
        """Return the index of this sequence's own tokens, made at the first call."""
        if self.index is None:
            self.index = SuffixIndex(self.tokens)
        return self.index

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self.index is not None:
            self.index.extend((token,))

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self.limit

    @property
    def may_shift(self) -> bool:
        """Whether an answer that fills the context may continue."""
        max_tokens = self.request.max_tokens
        return bool(self.request.context_shift) and (max_tokens is None or self.n_output < max_tokens)

    @property
    def may_end_midway(self) -> bool:
        """Whether the text of a token, and not the token alone, may end the answer."""
        return bool(self.request.stop) or self.request.max_predict_s is not None

    def apply_shift(self, n_keep: int, n_discard: int, n_ctx: int) -> None:
        """Remove `n_discard` tokens after the first `n_keep`; the suffix index begins anew."""
        del self.tokens[n_keep : n_keep + n_discard]
        self.n_dropped += n_discard
        self.index, self.draft = None, NO_DRAFT
        max_tokens = self.request.max_tokens
        self.limit = n_ctx if max_tokens is None else min(n_ctx, len(self.tokens) + max_tokens - self.n_output)

    def is_timed_out(self, now_s: float) -> bool:
        limit_s = self.request.max_time_s
        return limit_s is not None and now_s - self.times.arrived_s >= limit_s

    def is_past_time_limit(self, text: str, now_s: float) -> bool:
        """Whether the new `text` contains a line end later than `max_predict_s` after the first token."""
        limit_s, started_s = self.request.max_predict_s, self.times.first_token_s
        return limit_s is not None and started_s is not None and "\n" in text and now_s - started_s > limit_s

    def usage(self) -> Usage:
        drafting, thought = self.drafting, self.chooser.thought
        return Usage(
            n_prompt_tokens=self.n_prompt,
            n_cached_tokens=self.n_cached,
            n_output_tokens=self.n_output,
            n_drafted_tokens=drafting.n_drafted,
            n_accepted_tokens=drafting.n_accepted,
            n_passes=self.n_passes,
            n_dropped_tokens=self.n_dropped,
            n_reasoning_tokens=0 if thought is None else thought.n_tokens,
            is_reasoning_cut=thought is not None and thought.was_cut,
        )

    def timings(self, now_s: float) -> Timings:
        """Return the time of each stage until `now_s`, 0 for stages that have not begun."""
        times = self.times
        scheduled_s = now_s if times.scheduled_s is None else times.scheduled_s
        first_token_s = now_s if times.first_token_s is None else times.first_token_s
        return Timings(
            queue_s=scheduled_s - times.arrived_s,
            prefill_s=first_token_s - scheduled_s,
            decode_s=now_s - first_token_s,
            saved_s=self.drafting.saved_s,
        )


def plan_shift(n_tokens: int, n_keep: int, n_ctx: int) -> tuple[int, int]:
    """Return how many of `n_tokens` that fill a context of `n_ctx` stay as its head, and how many are dropped then.
    Half of the tokens after the head are dropped, and the others move up. As in llama-server, a head that would fill
    the context is shortened by a few tokens."""
    n_head = max(0, min(max(n_keep, MIN_KEPT_TOKENS), n_ctx - MIN_KEPT_TOKENS))
    return n_head, max(1, (n_tokens - n_head) // 2)


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

    def admit(self, request: Request, layouts: Mapping[str, MediaLayout] = NO_LAYOUTS) -> Sequence:
        """Return the sequence of `request`, with the layout of its media by marker; the caller closes its sampler.
        Raises RequestError for what this model does not support, ContextOverflowError for a prompt that does not
        fit."""
        request = self._with_shift(request)
        if not self._facts.can_generate:
            raise RequestError("This model only embeds, ranks or says texts; it cannot chat.", "Load a chat model.")
        adapters = adapter_set(self._facts.adapters, request.lora)
        prompt = self._prompt_tokens(request, layouts)
        tokens = prompt.tokens
        min_room = 1 if request.context_shift else request.min_room
        if len(tokens) + min_room > self._facts.n_ctx:
            raise ContextOverflowError(len(tokens), self._facts.n_ctx)
        n_free = self._facts.n_ctx - len(tokens)
        self._n_arrived += 1
        return Sequence(
            request=request,
            arrival=self._n_arrived,
            tokens=tokens,
            n_prompt=len(tokens),
            limit=len(tokens) + (n_free if request.max_tokens is None else min(n_free, request.max_tokens)),
            chooser=self._new_chooser(request, tokens),
            drafting=Drafting(self._new_acceptance()),
            times=AnswerTimes(self._clock()),
            adapters=adapters,
            branches=self._branches(request, layouts, tokens),
            media=prompt.chunks,
        )

    def _new_chooser(self, request: Request, tokens: Many[int]) -> TokenChooser:
        backend = self._backend
        sampling = request.sampling.with_token_biases(lambda text: backend.tokenize(text, False, False))
        # Special tokens that are text to the client: tags of the request that are a single token.
        tagged = ((tag, self._within_answer(tag)) for tag in request.visible_tags)
        visible = {ids[0]: tag.encode() for tag, ids in tagged if len(ids) == 1}

        def piece(token: int) -> bytes:
            return backend.piece(token) or visible.get(token, b"")

        if sampling.calls is None:
            sampler: Sampler = backend.new_sampler(sampling, request.ignore_eos, tokens, visible.keys())
            calls = None
        else:
            bindable = sampler = backend.new_bindable_sampler(sampling, request.ignore_eos, tokens)
            vocabulary = AnswerVocabulary(piece, visible.keys(), self._within_answer)
            closings = request.reasoning.closings if request.reasoning is not None else ()
            try:
                may_end = not request.ignore_eos
                calls = CallStages(sampling.calls, bindable, vocabulary, closings, may_end=may_end)
            except RequestError:
                sampler.close()
                raise
        thought = Thought(request.reasoning, self._within_answer) if request.reasoning is not None else None
        return TokenChooser(sampler, piece if visible else backend.piece, thought, calls)

    def _within_answer(self, text: str) -> list[int]:
        return self._backend.tokenize(text, False, True)

    def _branches(self, request: Request, layouts: Mapping[str, MediaLayout], tokens: list[int]) -> tuple[int, ...]:
        """Return the request's branches in tokens, none where sequences can be truncated and need no checkpoints."""
        prompt, needs_none = request.prompt, self._facts.truncation.is_unlimited
        if needs_none or not isinstance(prompt, str):
            return () if needs_none else request.branches
        begins = (self._tokens_of(prompt[:end], request, layouts).tokens for end in request.branches)
        return tuple(n_common(begin, tokens) for begin in begins)  # cut text may end in other tokens

    def _prompt_tokens(self, request: Request, layouts: Mapping[str, MediaLayout]) -> PromptTokens:
        if isinstance(request.prompt, str):
            prompt = self._tokens_of(request.prompt, request, layouts)
        else:
            prompt = PromptTokens(list(request.prompt))
            if any(not 0 <= token < self._facts.n_vocab for token in prompt.tokens):
                raise RequestError("A token id of the prompt is not in the vocabulary.", "Tokenize with this model.")
        if not prompt.tokens:
            raise RequestError("The prompt is empty.", "Give at least one token of text.")
        if prompt.chunks and request.echo:
            raise RequestError("A prompt with pictures or sounds cannot be echoed.", "Leave echo out.")
        # Tokens that attend to later ones are computed in one micro-batch.
        largest = max((each.chunk.n_tokens for each in prompt.chunks if not each.chunk.is_causal), default=0)
        if largest > self._facts.n_ubatch:
            cause = f"A picture has {largest} tokens, and this model computes at most {self._facts.n_ubatch} at once."
            raise RequestError(cause, "Send a smaller picture, or load the model with a larger micro-batch.")
        return prompt

    def _tokens_of(self, prompt: str, request: Request, layouts: Mapping[str, MediaLayout]) -> PromptTokens:
        def tokenize(text: str, is_first: bool, quoted: Spans) -> list[int]:
            add_special = request.add_special and is_first
            if request.parse_special:
                return quoted_tokens(text, quoted, add_special, self._backend)
            return self._backend.tokenize(text, add_special, False)

        return prompt_tokens(prompt, layouts, tokenize, request.quoted)

    def _with_shift(self, request: Request) -> Request:
        """Return `request` with `context_shift` set, by default to the engine's setting."""
        wants_shift = self._shifts_context if request.context_shift is None else request.context_shift
        if request.media:
            if request.context_shift:
                cause = "The context cannot be shifted: half a picture or sound would be left of it."
                raise RequestError(cause, "Leave context_shift out.")
            wants_shift = False
        if wants_shift and not self._facts.supports_shift:
            raise RequestError("The context of this model cannot be shifted.", "Leave context_shift out.")
        limits = (request.max_tokens, request.max_time_s, request.max_predict_s)
        is_limited = bool(request.stop) or any(limit is not None for limit in limits)
        # Without a limit only the context would end an answer that ignores its end; a grammar ends its own.
        if wants_shift and request.ignore_eos and not is_limited and not request.sampling.ends_by_grammar:
            cause = "context_shift with ignore_eos needs a token limit, a time limit or a stop string."
            raise RequestError(cause, "Set max_tokens, a time limit or a stop string.")
        return replace(request, context_shift=wants_shift)
