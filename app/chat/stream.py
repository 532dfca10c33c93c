"""An answer as it streams: printable chunks at the pace of a terminal, and the figures measured while it runs.

Owns batching, cleaning and timing. Stores no text: `tui.chat.session` appends the chunks to the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from app.chat.backend import ChatBackend, ChatConnection
from app.chat.conversation import MessageContent, Scalar
from app.chat.prompt_templates import COMPLETION, COMPLETION_TOKENS, render_prompt, template_stops
from app.chat.sampling_options import generation_options, template_of
from app.common.terminal import printable
from app.protocol.chat import (
    AnswerDelta,
    AnswerEvent,
    Completed,
    GenerationOptions,
    Message,
    Tool,
    ToolCallDelta,
    joined_deltas,
)
from app.protocol.errors import RequestError

BATCH_S = 0.05  # drawing each delta alone costs twice the CPU
_LONGEST_BATCH_S = 0.15
_DRAWING_SHARE = 0.2  # of a core, for one answer; keys and what is drawn for them come on top
_MIN_RATE_SPAN_S = 0.2
_REASONING_S, _N_REASONING_TOKENS = "thought_s", "n_thought_tokens"  # keys of a message's stats
_N_CUT_TOKENS = "n_cut_reasoning_tokens"  # as `Completed`
_N_TOKENS, _FIRST_TOKEN_S, _RATE = "n_output_tokens", "time_to_first_token_s", "decode_tokens_per_s"  # as `Completed`
_NO_OPTIONS: Mapping[str, Scalar] = MappingProxyType({})

Clock = Callable[[], float]
"""Returns seconds from any fixed point."""


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """Printable text and reasoning, and the number of tokens of the answer so far: `n_thought_tokens` of them up to
    the last reasoning, None if the chunk has none. `response_id` names the answer to the service.

    `calls` are new parts of calls as the model wrote them, not yet safe for a terminal: what is sent back to it and
    given to a tool must not differ.
    """

    text: str
    n_tokens: int
    reasoning: str = ""
    n_thought_tokens: int | None = None
    response_id: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


async def stream_answer(
    connection: ChatConnection,
    turns: Sequence[Message],
    options: Mapping[str, Scalar] = _NO_OPTIONS,
    other_model: Callable[[], str] = lambda: "",
    busy_s: Clock = time.thread_time,
    prompt_cache_key: str = "",
    tools: Sequence[Tool] = (),
) -> AsyncGenerator[StreamChunk | Completed, None]:
    """Yield the answer to `turns` in chunks and, last, its cost. Waits until the model is ready. If the last turn is an
    answer, continues it. `options` are the chat's, see `app.chat.sampling_options`; with a template among them the
    model continues a text made of the turns. Where `other_model` names one, that answers instead of the connection's;
    the service loads it. What is cached belongs to `prompt_cache_key`; without one it stays off the disk. The answer
    may call `tools`, not with a template. `busy_s` tells how long the thread that draws has worked: it sets the pace.

    Closing the generator stops the answer. Raises the UserError that ended it, after yielding the text before it.
    """
    client = await (connection.service() if other_model() else connection.client())
    sent = replace(with_cache_key(generation_options(options), prompt_cache_key), tools=tuple(tools))
    stream = _requested(client, other_model() or connection.state.model, turns, sent, template_of(options))
    queue: asyncio.Queue[AnswerEvent | None] = asyncio.Queue()
    reader = asyncio.create_task(_read(stream, queue))
    try:
        is_open = True
        while is_open:
            events = [await queue.get()]
            while not queue.empty():
                events.append(queue.get_nowait())
            is_open = events[-1] is not None
            busy_before_s = busy_s()
            for event in _batch(events):
                yield event
            if is_open:
                await asyncio.sleep(BATCH_S)
                await asyncio.sleep(remaining_pause_s(busy_s() - busy_before_s))
        await reader
    finally:
        # Cancelled inside the stream's own await, so that the connection is closed and the engine stops.
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


def with_cache_key(options: GenerationOptions, key: str) -> GenerationOptions:
    """Return the options of a request of the chat `key`, of one that is not stored for an empty key."""
    if not key:
        return replace(options, prompt_cache_retention="in_memory")
    return replace(options, prompt_cache_key=key)


def remaining_pause_s(drawing_s: float) -> float:
    """Return how long to wait after `BATCH_S` for the next chunk, where drawing the last one took `drawing_s`."""
    return max(0.0, min(drawing_s / _DRAWING_SHARE, _LONGEST_BATCH_S) - BATCH_S)


def _requested(
    client: ChatBackend, model: str, turns: Sequence[Message], sent: GenerationOptions, template: str
) -> AsyncGenerator[AnswerEvent, None]:
    if template:
        if any(turn.media for turn in turns):
            raise RequestError(
                "A prompt template has no place for pictures and sounds.", "/template model uses the model's own."
            )
        stops = (*(sent.stop or ()), *template_stops(template))
        n_tokens = sent.max_tokens or (COMPLETION_TOKENS if template == COMPLETION else None)
        sent = replace(sent, stop=stops or None, max_tokens=n_tokens, tools=())
        return client.complete(render_prompt(template, turns), model, sent)
    continues = turns[-1].role == "assistant" or None
    return client.chat(turns, model, replace(sent, continue_final_message=continues))


async def _read(stream: AsyncIterator[AnswerEvent], queue: asyncio.Queue[AnswerEvent | None]) -> None:
    try:
        async for event in stream:
            queue.put_nowait(event)
    finally:
        queue.put_nowait(None)


def _batch(events: Sequence[AnswerEvent | None]) -> list[StreamChunk | Completed]:
    """Join the deltas into one chunk."""
    deltas = [event for event in events if isinstance(event, AnswerDelta)]
    completed = [event for event in events if isinstance(event, Completed)]
    if not deltas:
        return [*completed]
    counts = [delta.n_tokens for delta in deltas if delta.reasoning]
    chunk = StreamChunk(
        printable("".join(delta.text for delta in deltas)),
        deltas[-1].n_tokens,
        printable("".join(delta.reasoning for delta in deltas)),
        max(counts, default=None),
        deltas[-1].response_id,
        joined_deltas(call for delta in deltas for call in delta.calls),
    )
    return [chunk, *completed]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """The figures of the last answer of a chat; None is unknown. `cost` is the engine's report, which a running or
    stopped answer lacks; `n_context_tokens` are those of the chat with the answer."""

    model: str = ""
    tokens_per_s: float | None = None
    time_to_first_token_s: float | None = None
    n_context_tokens: int = 0
    is_context_estimated: bool = False
    cost: Completed | None = None

    @classmethod
    def of_cost(cls, model: str, cost: Completed) -> AnswerFigures:
        """Return the figures that the engine reported."""
        return cls(
            model=model,
            tokens_per_s=cost.decode_tokens_per_s,
            time_to_first_token_s=cost.time_to_first_token_s,
            n_context_tokens=cost.n_prompt_tokens + cost.n_output_tokens,
            cost=cost,
        )


class AnswerTimer:
    """Measures one answer from its creation on; the engine's figures replace the rates when it ends.

    `stats` are the figures of the reasoning for the message, at first those among `former_stats` of a continued answer.
    """

    def __init__(self, clock: Clock, former_stats: Mapping[str, Scalar] = _NO_OPTIONS) -> None:
        keys = (_REASONING_S, _N_REASONING_TOKENS)
        self.stats: Mapping[str, Scalar] = {key: former_stats[key] for key in keys if key in former_stats}
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_first_tokens = 0
        self._n_tokens = 0
        self._reasoning_started_s: float | None = None

    def observe(self, chunk: StreamChunk) -> None:
        """Record that `chunk` arrived."""
        now_s = self._clock()
        self._n_tokens = chunk.n_tokens
        if self._first_s is None:
            self._first_s, self._n_first_tokens = now_s, chunk.n_tokens
        if chunk.n_thought_tokens is not None:
            if self._reasoning_started_s is None:
                self._reasoning_started_s = now_s
            self.stats = {
                _REASONING_S: now_s - self._reasoning_started_s,
                _N_REASONING_TOKENS: chunk.n_thought_tokens,
            }

    @property
    def n_tokens(self) -> int:
        """The number of tokens so far."""
        return self._n_tokens

    @property
    def final_stats(self) -> Mapping[str, Scalar]:
        """The stats of an answer that ends without the engine's figures: what was measured here."""
        measured = {
            _N_TOKENS: self._n_tokens or None,
            _FIRST_TOKEN_S: self.time_to_first_token_s,
            _RATE: self.tokens_per_s,
        }
        return {**self.stats, **{key: value for key, value in measured.items() if value is not None}}

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._started_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first chunk; None until the span is long enough."""
        span_s = 0.0 if self._first_s is None else self._clock() - self._first_s
        n_tokens = max(0, self._n_tokens - self._n_first_tokens)
        return n_tokens / span_s if span_s >= _MIN_RATE_SPAN_S else None


def format_reasoning(message: MessageContent, *, is_running: bool) -> str:
    """Return how long a message's reasoning took and how many tokens it has, as far as known; of one that was ended
    early, how many it had by then."""
    n_cut = message.stats.get(_N_CUT_TOKENS)
    if isinstance(n_cut, int) and n_cut > 0:
        return f"thought ended after {n_cut} token{'s' if n_cut != 1 else ''}"
    span_s, n_tokens = message.stats.get(_REASONING_S), message.stats.get(_N_REASONING_TOKENS)
    verb = "thinking" if is_running and not message.content else "thought"
    span = f" for {span_s:.1f} s" if isinstance(span_s, float) else ""
    return f"{verb}{span}" + (f", {n_tokens} token{'s' if n_tokens != 1 else ''}" if n_tokens is not None else "")
