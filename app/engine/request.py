"""The engine's request with its LoRA adapters, and the figures of its answer. Pure values.

Owns the limits of every number that reaches the engine from outside, and how requests name adapters. Computed tokens
depend on their adapters, so every key of the cache contains the set. Independent of HTTP, llama.cpp and scheduling.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from app.engine.grammar.call_rules import CallRules
from app.protocol.errors import RequestError
from app.protocol.sampling import SamplingOptions
from quantizer.figures import format_number

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_LOGIT_BIASES = 1024
MAX_BIASED_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_INDENT = 1024
MAX_BRANCHES = 8
MAX_SCALE = 100.0  # of an adapter
MAX_MEDIA = 64
MAX_TAG_CHARACTERS = 256  # around reasoning
MAX_CONCLUSION_CHARACTERS = 4096

# (key, scale) of each active adapter, sorted by key; a scale of 0 is the same as absence.
AdapterSet: TypeAlias = tuple[tuple[str, float], ...]
NO_ADAPTERS: AdapterSet = ()
IN_MEMORY = "memory"  # as the conversation of a request: none of its states reach the disk
READ_AHEAD_PRIORITY = -1  # of requests that only fill the cache
BATCH_PRIORITY = -2  # of those that nobody waits for


@dataclass(frozen=True, slots=True)
class MediaInput:
    """A picture or sound of a prompt: its file in Base64, which stands where the prompt has the text `marker`. Senders
    make markers that no text of a user can contain by chance or design."""

    marker: str
    base64: str

    @property
    def data(self) -> bytes:
        """The bytes of the file. Raises RequestError for invalid Base64."""
        try:
            return b64decode(self.base64, validate=True)
        except ValueError as error:
            raise RequestError("A picture or sound is not valid Base64.", "Send the file in Base64.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """How a model marks its reasoning, and at most how many tokens of it an answer has; None: as many as it likes.

    Reasoning begins behind `opening`, where that `recurs` anywhere, else at the beginning of the answer, or at once
    where the prompt `is_open`. It ends with one of `closings`. When its tokens are used up, or on request, it is ended
    by `conclusion`, unless it has no text, and `ending`; if it begins again, by `last_ending` where that is given.

    Raises RequestError for a count or a text that is out of range.
    """

    opening: str
    closings: tuple[str, ...]
    ending: str
    last_ending: str = ""
    conclusion: str = ""
    is_open: bool = False
    recurs: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        assert all((self.opening, self.closings, *self.closings, self.ending)), "reasoning has tags"
        assert all(len(text) <= MAX_TAG_CHARACTERS for text in (self.opening, *self.closings)), "tags are short"
        if self.max_tokens is not None and not 0 <= self.max_tokens <= 2**31 - 1:
            raise RequestError(f"The reasoning budget is {self.max_tokens} tokens.", "Give a count from 0.")
        if len(self.conclusion) > MAX_CONCLUSION_CHARACTERS:
            cause = f"The message that ends reasoning has {len(self.conclusion)} characters."
            raise RequestError(cause, f"Use at most {MAX_CONCLUSION_CHARACTERS}.")


class FinishReason(StrEnum):
    STOP = "stop"  # the model ended its turn, or a stop string matched
    LENGTH = "length"  # max_tokens or the context was reached
    ABORTED = "aborted"  # the client cancelled or disconnected
    ERROR = "error"  # the request failed; the message has cause and remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingOptions):
    """The sampling options with `logit_bias`: (token id, bias) pairs, where -infinity bans the token. `text_bias` has
    texts, whose tokens all get the bias, and becomes `logit_bias` where a model is at hand. Tool calls are
    bound by `calls`, instead of the whole answer by a `grammar`. Raises RequestError as SamplingOptions, and for biases
    that are too many or outside their range."""

    logit_bias: tuple[tuple[int, float], ...] = ()
    text_bias: tuple[tuple[str, float], ...] = ()
    calls: CallRules | None = None

    def __post_init__(self) -> None:
        SamplingOptions.__post_init__(self)
        assert not (self.grammar and self.calls), "one of them binds an answer"
        if (n_biases := len(self.logit_bias) + len(self.text_bias)) > MAX_LOGIT_BIASES:
            raise RequestError(f"logit_bias has {n_biases} tokens.", f"Give at most {MAX_LOGIT_BIASES}.")
        if any(not 1 <= len(text) <= MAX_BIASED_CHARACTERS for text, _ in self.text_bias):
            cause = "A text of logit_bias is empty or too long."
            raise RequestError(cause, f"Use 1 to {MAX_BIASED_CHARACTERS} characters, or ids from /tokenize.")
        for token, bias in (*self.logit_bias, *self.text_bias):
            if not (-1000.0 <= bias <= 1000.0 or bias == -math.inf):
                cause = f"logit_bias of {f'token {token}' if isinstance(token, int) else repr(token)} is {bias}."
                raise RequestError(cause, "Give a number from -1000 to 1000, or false to ban the token.")

    def with_token_biases(self, tokenize: Callable[[str], Sequence[int]]) -> SamplingParams:
        """Return the parameters with biases of token ids only. Raises RequestError where these are too many."""
        found = tuple((token, bias) for text, bias in self.text_bias for token in dict.fromkeys(tokenize(text)))
        return replace(self, logit_bias=(*self.logit_bias, *found), text_bias=()) if self.text_bias else self

    @property
    def ends_by_grammar(self) -> bool:
        """Whether a grammar decides when the answer may end."""
        return bool(self.grammar or (self.calls and self.calls.begin))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue, and the limits of its answer. Raises RequestError when a limit is exceeded."""

    request_id: str
    # The prompt: text, which the worker tokenizes, or token ids
    prompt: str | tuple[int, ...]
    add_special: bool = True
    parse_special: bool = True  # the text of special tokens becomes those tokens …
    quoted: tuple[tuple[int, int], ...] = ()  # … but never within these parts of a text, from character to character
    media: tuple[MediaInput, ...] = ()  # each stands in the text wherever its marker is, perhaps several times
    branches: tuple[int, ...] = ()  # where other prompts may leave this one, in characters or tokens of `prompt`
    # What the answer is sampled with, and where it ends
    sampling: SamplingParams = field(default_factory=SamplingParams)
    lora: tuple[tuple[int | str, float], ...] | None = None  # scales of adapters by number or name; None: all at 1
    max_tokens: int | None = None  # None: until the model ends or the context is full
    min_room: int = 1  # a prompt that leaves fewer tokens is too long, unless the context is shifted
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # strings that end the answer, and are not part of it
    n_indent: int = 0  # the first line indented by fewer blanks and tabs ends the answer, but for the line it begins in
    max_time_s: float | None = None  # after the request arrived
    max_predict_s: float | None = None  # after the first token, at the next line end
    reasoning: ReasoningBudget | None = None  # None: reasoning is not followed, and cannot be ended
    context_shift: bool | None = None  # whether an answer that fills the context continues; None: the engine's setting
    n_keep: int = 0  # tokens that a shift keeps at the begin, of the others it drops the oldest; -1: the prompt
    # What is output
    n_logprobs: int | None = None  # log probabilities of tokens, and of as many alternatives of each; None: none
    logprobs_after_samplers: bool = False  # those of the answer are of the choice that the samplers leave
    returns_tokens: bool = False  # ids of tokens
    echo: bool = False  # the prompt first, with log probabilities if there are any
    visible_tags: tuple[str, ...] = ()  # special tokens with one of these texts are output
    # How it is computed
    priority: int = 0  # the higher is served first
    max_draft_tokens: int | None = None  # verified in a step; None: as many as pay
    is_deterministic: bool | None = None  # with equal logits each time, to the bit; None: the engine's setting
    conversation: str = ""  # what its states belong to and are removed with, in characters of a file name
    owner: str = ""  # whose it is, where holders of several keys ask: it reuses nothing of others, nor they of it
    corpus: str = ""  # the project in whose texts drafts are looked up, as its client calls it; those of `owner` only
    notices: tuple[str, ...] = ()  # what of the client's request has no effect: for its answer, nothing to compute

    def __post_init__(self) -> None:
        self._check_prompt()
        if self.max_tokens is not None and not 0 <= self.max_tokens <= 2**31 - 1:
            raise RequestError(f"max_tokens is {self.max_tokens}.", "Give a count from 0, or leave it out.")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"There are {len(self.stop)} stop strings.", f"Give at most {MAX_STOP_STRINGS}.")
        if any(not 1 <= len(text) <= MAX_STOP_CHARACTERS for text in self.stop):
            raise RequestError("A stop string is empty or too long.", f"Use 1 to {MAX_STOP_CHARACTERS} characters.")
        if self.n_logprobs is not None and not 0 <= self.n_logprobs <= MAX_LOGPROBS:
            raise RequestError(f"logprobs is {self.n_logprobs}.", f"Give a count from 0 to {MAX_LOGPROBS}.")
        if not -1 <= self.n_keep <= 2**31 - 1:
            raise RequestError(f"n_keep is {self.n_keep}.", "Give a count from 0, or -1 for the whole prompt.")
        if self.max_draft_tokens is not None and not 0 <= self.max_draft_tokens <= 2**31 - 1:
            raise RequestError(f"speculative.n_max is {self.max_draft_tokens}.", "Give a count from 0.")
        if not 0 <= self.n_indent <= MAX_INDENT:
            raise RequestError(f"n_indent is {self.n_indent}.", f"Give a count from 0 to {MAX_INDENT}.")
        for name, limit_s in (("max_time", self.max_time_s), ("t_max_predict_ms", self.max_predict_s)):
            if limit_s is not None and not 0 < limit_s < math.inf:
                raise RequestError(f"{name} is not positive.", "Give a number above 0, or leave it out.")

    @property
    def reads_ahead(self) -> bool:
        """Whether it only fills the cache: it has no answer, and nobody waits for its end."""
        return self.max_tokens == 0 and self.priority == READ_AHEAD_PRIORITY and not self.echo

    def _check_prompt(self) -> None:
        assert self.conversation.isalnum() or not self.conversation, "it is part of a file name"
        if len(self.branches) > MAX_BRANCHES or any(not 0 <= end <= len(self.prompt) for end in self.branches):
            raise RequestError("The prompt has too many branches, or one outside of it.", "Leave them out.")
        if len(self.media) > MAX_MEDIA:
            raise RequestError(f"The prompt has {len(self.media)} pictures and sounds.", f"Send at most {MAX_MEDIA}.")
        assert not self.media or isinstance(self.prompt, str), "markers are text"
        assert not self.quoted or isinstance(self.prompt, str), "quoted parts are text"
        if not 1 <= self.min_room <= 2**31 - 1:
            raise RequestError(f"min_room is {self.min_room}.", "Give a count from 1.")

    def variants(self, n_answers: int) -> tuple[Request, ...]:
        """Return `n_answers` requests that differ only in id and seed; they share the prompt's cells."""
        made, seed = [self], self.sampling.seed
        for index in range(1, n_answers):
            sampling = self.sampling if seed is None else replace(self.sampling, seed=(seed + index) % 2**64)
            made.append(replace(self, request_id=f"{self.request_id}-{index}", sampling=sampling))
        return tuple(made)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """An output token: its bytes, its log probability (natural), and the most likely tokens at its position, by id.
    `piece` is empty for a special token; `top` and an echoed prompt contain the text of special tokens. `offset` is
    where its text begins, in characters of the answer. Probabilities are the model's own, before samplers, unless the
    request wants those after them; then `top` has no token without a chance. The first token of a prompt has none."""

    piece: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...]
    offset: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer. `n_cached_tokens` of the prompt were not computed again. The answer took `n_passes`
    through the model; accepted drafts make them fewer than its tokens. `n_dropped_tokens` of prompt and answer were
    dropped by context shifts. `n_reasoning_tokens` of the answer were followed as reasoning, which `is_reasoning_cut`
    where the engine ended it."""

    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_output_tokens: int = 0
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    n_passes: int = 0
    n_dropped_tokens: int = 0
    n_reasoning_tokens: int = 0
    is_reasoning_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds of one answer: waiting for a slot, prefill up to the first token, decode after it. `saved_s` is the
    estimated decode time saved by drafts, see `app.engine.speculative.cost_model.StepCost.saved_s`."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    saved_s: float = 0.0

    @property
    def time_to_first_token_s(self) -> float:
        return self.queue_s + self.prefill_s


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter: its name in requests, and a key that identifies its file."""

    name: str
    key: str


def adapter_set(known: Sequence[Adapter], wanted: Sequence[tuple[int | str, float]] | None) -> AdapterSet:
    """Return the adapter set for `wanted` (number or name, and scale); None means all of `known` at scale 1. Raises
    RequestError for an adapter that is not loaded or named twice, and for a scale out of range."""
    if wanted is None:
        return tuple(sorted((adapter.key, 1.0) for adapter in known))
    scales: dict[str, float] = {}
    for name, scale in wanted:
        key = _find(known, name).key
        if key in scales:
            raise RequestError(f"The adapter {name!r} occurs twice.", "Give each adapter one scale.")
        if not (math.isfinite(scale) and abs(scale) <= MAX_SCALE):
            raise RequestError(
                f"The scale of the adapter {name!r} is {scale}.", f"Give one up to {format_number(MAX_SCALE)}."
            )
        scales[key] = float(scale)
    return tuple(sorted((key, scale) for key, scale in scales.items() if scale))


def _find(known: Sequence[Adapter], name: int | str) -> Adapter:
    for index, adapter in enumerate(known):
        if name in (index, adapter.name):
            return adapter
    names = ", ".join(f"{index} ({adapter.name})" for index, adapter in enumerate(known))
    remedy = f"Loaded are: {names}." if known else "Load one with `localllm serve --lora FILE`."
    raise RequestError(f"There is no adapter {str(name)[:64]!r}.", remedy)
