"""An answer as it streams: printable chunks at the pace of a terminal, appended to its message.

`stream_answer` is the request and its chunks; `answer` puts them into the message of a chat and keeps what came so far,
however it ends. What follows an answer is `app.chat.exchange`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from app.chat.backend import ChatBackend, ChatConnection
from app.chat.branches import failure_stats
from app.chat.conversation import Message, MessageState, Scalar
from app.chat.events import Events, Failed, Finished, Note, Reading, Repeating, Written
from app.chat.repetition import RepetitionDetector
from app.chat.repository import AnswerTarget, AnswerWriter
from app.chat.sampling_options import (
    COMPLETION,
    COMPLETION_TOKENS,
    generation_options,
    render_prompt,
    template_of,
    template_stops,
)
from app.chat.state import AnswerFigures, AnswerTimer, ChatState, Clock, RunningAnswer
from app.common.terminal import printable
from app.protocol.chat import (
    AnswerDelta,
    AnswerEvent,
    Completed,
    GenerationOptions,
    PromptProgress,
    Tool,
    ToolCallDelta,
    joined_deltas,
    with_deltas,
)
from app.protocol.chat import Message as ChatMessage
from app.protocol.errors import RequestError, ServiceError
from quantizer.system.errors import UserError

BATCH_S = 0.05  # drawing each delta alone costs twice the CPU
_LONGEST_BATCH_S = 0.15
_DRAWING_SHARE = 0.2  # of a core, for one answer; keys and what is drawn for them come on top
_NO_OPTIONS: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """Printable text and reasoning, and the number of tokens of the answer so far: `n_thought_tokens` of them up to the
    last reasoning, None if the chunk has none. `response_id` names the answer to the service. `calls` are new parts of
    calls as the model wrote them, not yet safe for a terminal: what is sent back to it and given to a tool must not
    differ."""

    text: str
    n_tokens: int
    reasoning: str = ""
    n_thought_tokens: int | None = None
    response_id: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


async def answer(chat: ChatState, writer: AnswerWriter, target: AnswerTarget) -> Events:
    """Stream the answer to `target` into `writer`. Whatever ends it, the text so far is kept; an error is one of the
    conversation."""
    conversation, timer = chat.conversation, AnswerTimer(chat.clock, writer.message.stats)
    repetition, thought_repetition = RepetitionDetector(), RepetitionDetector()
    ending: Finished | Failed | None = None
    stats: dict[str, Scalar] = {}  # of an answer that does not end well
    chat.other_model = target.model if target.is_other else ""
    chat.activity = "answering"
    writer.update(replace(writer.message, state=MessageState.PARTIAL, stats=timer.stats, calls=()))
    conversation.begin(writer.message)
    n_before = chat.context_size(writer.message.id).n_tokens
    chat.figures = timer.figures(chat.answering_model, n_before)
    begun_s = chat.clock()
    chat.running = running = RunningAnswer(begun_s=begun_s, heard_s=begun_s)
    try:
        yield Reading(writer.message)
        await chat.client()  # what the model can take is known once it is loaded
        async with aclosing(_prepare(chat, target)) as events:
            async for event in events:
                yield event
        n_before = chat.context_size(writer.message.id).n_tokens
        turns = await chat.turns(writer.message.id if target.continued else target.parent_id)
        is_new = turns[-1].role != "assistant"
        chunks = stream_answer(
            chat.connection,
            turns,
            taken_options(chat),
            lambda: chat.model_beside_connection,
            prompt_cache_key=chat.stored.prompt_cache_key,
            draft_corpus=chat.draft_corpus,
            tools=chat.offered,
            clean=chat.clean,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                if isinstance(chunk, PromptProgress):
                    chat.running = running = running.after(chunk, chat.clock())
                    stats |= _counted(chat, chunk)
                    n_before = chunk.n_tokens or n_before
                    chat.figures = timer.figures(chat.answering_model, n_before)
                    yield Reading(writer.message, chunk)
                    continue
                chat.running = running = running.after(None, chat.clock())
                message = replace(writer.message, model=chat.answering_model) if is_new else writer.message
                if isinstance(chunk, Completed):
                    chat.note_count()
                    chat.figures = AnswerFigures.of_cost(chat.answering_model, chunk)
                    whole = {**timer.stats, **asdict(chunk)}
                    writer.update(replace(message, state=MessageState.FINISHED, stats=whole))
                    ending = Finished(writer.message, chunk)
                    break
                timer.observe(chunk.n_tokens, chunk.n_thought_tokens)
                content, reasoning = message.content + chunk.text, message.reasoning + chunk.reasoning
                calls = with_deltas(message.calls, chunk.calls)
                message = replace(message, content=content, reasoning=reasoning, calls=calls, stats=timer.stats)
                writer.update(message)
                conversation.messages[message.id] = message = writer.message
                has_answer = bool(message.content or message.calls)
                chat.thinking_id = "" if has_answer or not message.reasoning else chunk.response_id
                chat.figures = timer.figures(chat.answering_model, n_before)
                yield Written(message, chunk.text, chunk.reasoning)
                if any([repetition.feed(chunk.text), thought_repetition.feed(chunk.reasoning)]):
                    yield Repeating(message)
    except UserError as error:
        ending = chat.fail(writer.message.id, error)
        stats |= failure_stats(error)
        if not chat.model_beside_connection or isinstance(error, ServiceError):
            await chat.connection.report_failure(error)
    finally:
        chat.activity = chat.other_model = chat.thinking_id = ""
        chat.running = None
        if writer.message.state is MessageState.PARTIAL:
            writer.update(replace(writer.message, stats={**stats, **timer.final_stats}))
        conversation.end(writer.message)
        chat.measure_branch()
    if ending is not None:
        yield ending


async def _prepare(chat: ChatState, target: AnswerTarget) -> Events:
    """Say what the model cannot take, find passages where that is done before a question, and note which tools are
    offered."""
    for sentence in chat.new_refusals():
        yield Note(sentence)
    if (question := _question_to_search(chat, target)) is not None:
        from app.chat.retrieval import find_passages  # not at the start

        chat.activity = "searching"
        async with aclosing(find_passages(chat, question)) as events:
            async for event in events:
                yield event
        chat.activity = "answering"
    await chat.offer_tools()


def _question_to_search(chat: ChatState, target: AnswerTarget) -> Message | None:
    """Return the question of a new answer if passages are to be found for it: one that was searched for before is sent
    with the same passages, which the engine has in its cache."""
    if target.continued is not None or target.parent_id is None:
        return None
    if not chat.is_searched_for(chat.conversation.path(target.parent_id)):
        return None
    is_asked = chat.conversation.messages[target.parent_id].role in ("user", "summary")  # else calls were answered
    question = chat.conversation.question_of(target.parent_id) if is_asked else None
    return None if question is None or question.sources else question


def _counted(chat: ChatState, progress: PromptProgress) -> dict[str, Scalar]:
    """Return what the engine counted before an answer that may be stopped, as figures of it."""
    if not progress.n_tokens:
        return {}
    chat.note_count()
    return {"n_prompt_tokens": progress.n_tokens, "n_output_tokens": 0}


def taken_options(chat: ChatState) -> Mapping[str, Scalar]:
    """Return the options of the chat without what the model cannot take: what it does not read may still cost
    tokens."""
    options = chat.conversation.settings.options
    does_not_think = chat.known_model is not None and chat.known_model.thinks is False
    return {name: value for name, value in options.items() if name != "think"} if does_not_think else options


async def stream_answer(
    connection: ChatConnection,
    turns: Sequence[ChatMessage],
    options: Mapping[str, Scalar] = _NO_OPTIONS,
    other_model: Callable[[], str] = lambda: "",
    busy_s: Clock = time.thread_time,
    prompt_cache_key: str | None = "",
    draft_corpus: str = "",
    tools: Sequence[Tool] = (),
    clean: Callable[[str], str] = printable,
) -> AsyncGenerator[StreamChunk | PromptProgress | Completed, None]:
    """Yield the progress of the prompt, the answer to `turns` in chunks and, last, its cost. Waits until the model is
    ready. If the last turn is an answer, continues it. `options` are the chat's, see `app.chat.sampling_options`; with
    a template among them the model continues a text made of the turns. Where `other_model` names one, that answers
    instead of the connection's; the service loads it. What is cached belongs to `prompt_cache_key`; without one it
    stays off the disk. Drafts are looked up in the texts of `draft_corpus`. The answer may call `tools`, not with a
    template. `busy_s` tells how long the thread that draws has worked: it sets the pace. `clean` makes text safe to
    show.

    Closing the generator stops the answer. Raises the UserError that ended it, after yielding the text before it.
    """
    client = await (connection.service() if other_model() else connection.client())
    sent = sent_options(options, prompt_cache_key, draft_corpus, tools)
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
            for event in _batch(events, clean):
                yield event
            if is_open:
                await asyncio.sleep(BATCH_S)
                await asyncio.sleep(remaining_pause_s(busy_s() - busy_before_s))
        await reader
    finally:
        # Cancelled inside the stream's own await, so that the connection is closed and the engine stops.
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


def sent_options(
    options: Mapping[str, Scalar], prompt_cache_key: str | None, draft_corpus: str, tools: Sequence[Tool]
) -> GenerationOptions:
    """Return what a question of the chat is sent with."""
    own = with_cache_key(generation_options(options), prompt_cache_key)
    return replace(own, draft_corpus=draft_corpus or None, tools=tuple(tools))


def with_cache_key(options: GenerationOptions, key: str | None) -> GenerationOptions:
    """Return the options of a request of the chat `key`; of one that stays off the disk for an empty key, and as the
    service does by itself for None."""
    if key is None:
        return options
    if not key:
        return replace(options, prompt_cache_retention="in_memory")
    return replace(options, prompt_cache_key=key)


def remaining_pause_s(drawing_s: float) -> float:
    """Return how long to wait after `BATCH_S` for the next chunk, where drawing the last one took `drawing_s`."""
    return max(0.0, min(drawing_s / _DRAWING_SHARE, _LONGEST_BATCH_S) - BATCH_S)


def _requested(
    client: ChatBackend, model: str, turns: Sequence[ChatMessage], sent: GenerationOptions, template: str
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


def _batch(
    events: Sequence[AnswerEvent | None], clean: Callable[[str], str]
) -> list[StreamChunk | PromptProgress | Completed]:
    """Join the deltas into one chunk, which makes progress of the prompt old news."""
    deltas = [event for event in events if isinstance(event, AnswerDelta)]
    completed = [event for event in events if isinstance(event, Completed)]
    if not deltas:
        progress = [event for event in events if isinstance(event, PromptProgress)]
        return [*progress[-1:], *completed]
    counts = [delta.n_tokens for delta in deltas if delta.reasoning]
    chunk = StreamChunk(
        clean("".join(delta.text for delta in deltas)),
        deltas[-1].n_tokens,
        clean("".join(delta.reasoning for delta in deltas)),
        max(counts, default=None),
        deltas[-1].response_id,
        joined_deltas(call for delta in deltas for call in delta.calls),
    )
    return [chunk, *completed]
