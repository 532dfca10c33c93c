"""Room in the context of a chat: when its older messages become a summary, and the summary as the model writes it.

Owns the decision (before a request, after one that did not fit, by command) and the requests. Where writing a summary
fails or is stopped, the chat is as it was. Which messages it replaces is planned in `app.chat.compaction`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace

from app.chat.compaction import (
    NO_SUMMARY,
    TOKENS_AFTER,
    TOKENS_BEFORE,
    CompactionPlan,
    ContextBudget,
    asking_branch,
    branch_tokens,
    checked_summary,
    estimated_tokens,
    message_tokens,
    plan_compaction,
    summary_request,
    with_files,
)
from app.chat.conversation import Message, MessageContent, MessageState, MessageTree, Scalar, placed
from app.chat.events import Added, Events, Note, Reading, Summarizing, Written
from app.chat.sampling_options import COMPLETION, template_of, think_of
from app.chat.state import ChatState, RunningAnswer
from app.chat.stream import StreamChunk, stream_answer
from app.protocol.chat import Completed, PromptProgress
from app.protocol.errors import ContextOverflowError, RequestError
from quantizer.system.errors import UserError

_TEMPERATURE = 0.3  # facts, not fancy
_LEAST_CTX = 2048  # where an engine does not say how long its context is
_NEAR_PERCENT = 70  # of what may be filled: below it the service need not be asked
_KEPT_OPTIONS = ("template", "seed", "deterministic")  # the others are for answers
_WRITING_ID = 2**62  # of the message of a summary that is being written, after all that are stored
_TOO_LOW = 1.5  # by how much an estimate may turn out too low before the second try
_NOTHING_TO_COMPACT = "There is nothing to compact: the older messages are few and short."


def is_near(chat: ChatState, leaf_id: int | None, question: MessageContent | None = None) -> bool:
    """Return whether a request after `leaf_id`, with a `question` that is not stored yet, may need room, so that
    `make_room` is worth its wait for the service."""
    policy, state = chat.compaction(), chat.connection.state
    if leaf_id is None or not policy.is_on:
        return False
    is_known = state.n_ctx > 0 and not chat.model_beside_connection
    n_near = ContextBudget(n_ctx=state.n_ctx, fill_percent=policy.fill_percent).n_full * _NEAR_PERCENT // 100
    return not is_known or _n_tokens(chat, leaf_id, question) > n_near


async def make_room(
    chat: ChatState,
    leaf_id: int | None,
    question: MessageContent | None = None,
    overflow: ContextOverflowError | None = None,
) -> Events:
    """Summarise older messages if the request after `leaf_id`, with a `question` that is not stored yet, would leave
    its answer too little room, or after the request ended with an `overflow`. Ends with `Added` and a note; without
    `Added` the request is sent as it is."""
    try:
        if overflow is None and not await _is_due(chat, leaf_id, question):
            return
        async with aclosing(_compact(chat, leaf_id, question=question, overflow=overflow)) as events:
            async for event in events:
                yield event
    except UserError as error:
        chat.may_compact = False
        yield Note(str(error))


async def make_room_now(chat: ChatState, focus: str) -> Events:
    """Summarise older messages because the person wants it; `focus` is what to keep in mind above all."""
    has_gained = False
    try:
        async with aclosing(_compact(chat, chat.conversation.leaf_id, focus)) as events:
            async for event in events:
                has_gained = True
                yield event
    except UserError as error:
        yield Note(str(error))
    else:
        if not has_gained:
            yield Note(_NOTHING_TO_COMPACT)


async def _is_due(chat: ChatState, leaf_id: int | None, question: MessageContent | None) -> bool:
    """Return whether the context cannot grow and is too full. Raises UserError where the service cannot be asked."""
    n_ctx, can_grow = await _context(chat)
    n_full = ContextBudget(n_ctx=n_ctx, fill_percent=chat.compaction().fill_percent).n_full
    return bool(n_ctx) and not can_grow and _n_tokens(chat, leaf_id, question) > n_full


async def _compact(
    chat: ChatState,
    leaf_id: int | None,
    focus: str = "",
    question: MessageContent | None = None,
    overflow: ContextOverflowError | None = None,
) -> Events:
    """Summarise the branch to a message in a message after it, if that gains something. There must be room for
    `question` after it; `overflow` has the tokens that a request of this branch takes, which is why older messages are
    left out then where no summary can be had. Raises UserError; then, and if stopped, the chat is as it was."""
    settings = chat.conversation.settings
    if template_of(settings.options) == COMPLETION:
        raise RequestError(
            "A chat that the model only continues cannot be summarised by it.", "/template names other templates."
        )
    budget = await _budget(chat, leaf_id, question, overflow)
    failure: RequestError | None = None
    tries = [(budget.factor, True), (budget.factor * _TOO_LOW, True)]
    for factor, is_read in (*tries, (budget.factor, False)) if overflow else tries:
        if factor != budget.factor and not isinstance(failure, ContextOverflowError):
            continue  # only an estimate that was too low is worth a second summary
        plan = plan_compaction(_path(chat, leaf_id), replace(budget, factor=factor), settings.system, is_read=is_read)
        if plan is None:
            continue
        try:
            async with aclosing(_write(chat, leaf_id, plan, focus)) as events:
                async for event in events:
                    yield event
        except RequestError as error:
            failure = error
        else:
            return
    if failure is not None:
        raise failure


def _n_tokens(chat: ChatState, leaf_id: int | None, question: MessageContent | None) -> int:
    return chat.conversation.context_size(leaf_id).n_tokens + _n_pending(chat, leaf_id, question)


def _n_pending(chat: ChatState, leaf_id: int | None, question: MessageContent | None) -> int:
    if question is None:
        return 0
    return message_tokens((*_path(chat, leaf_id), placed(question, 0, leaf_id))).of_messages[-1]


def _path(chat: ChatState, leaf_id: int | None) -> tuple[Message, ...]:
    return MessageTree(chat.conversation.messages.values()).path(leaf_id)


async def _context(chat: ChatState) -> tuple[int, bool]:
    """Return the tokens of the model's context, 0 if unknown, and whether it can grow."""
    status = (await (await chat.client()).status()).model(chat.answering_model)
    return (status.n_ctx, status.can_grow) if status is not None else (0, False)


async def _budget(
    chat: ChatState, leaf_id: int | None, question: MessageContent | None, overflow: ContextOverflowError | None
) -> ContextBudget:
    n_ctx = (await _context(chat))[0]
    n_branch = branch_tokens(_path(chat, leaf_id), chat.conversation.settings.system)
    if overflow is not None:
        n_ctx = overflow.n_ctx
    return ContextBudget(
        n_ctx=n_ctx or max(_LEAST_CTX, n_branch),
        fill_percent=chat.compaction().fill_percent,
        n_pending=_n_pending(chat, leaf_id, question),
        factor=1.0 if overflow is None else max(1.0, overflow.n_prompt_tokens / max(1, n_branch)),
    )


async def _write(chat: ChatState, leaf_id: int | None, plan: CompactionPlan, focus: str) -> Events:
    """Write the summary as a message after `leaf_id`, which is stored once it is whole: of one that was stopped,
    failed or killed nothing is left. For a plan without parts the message says that there is none."""
    conversation, model = chat.conversation, chat.answering_model
    await chat.stored.prepare("", model, conversation.settings)
    n_before = conversation.context_size(leaf_id).n_tokens or plan.n_tokens_before
    partial = MessageContent(role="summary", content="", model=model, state=MessageState.PARTIAL, n_kept=plan.n_kept)
    conversation.begin(placed(partial, _WRITING_ID, leaf_id))
    chat.activity = "summarising"
    text, cost = "", None
    request = summary_request(plan.n_summary_tokens, focus, has_tools=bool(chat.offered))
    try:
        for number, part in enumerate(plan.parts, start=1):
            conversation.part = (number, len(plan.parts))
            now_s = chat.clock()
            chat.running = running = RunningAnswer(begun_s=now_s, heard_s=now_s)
            yield Summarizing(conversation.messages[_WRITING_ID])
            path = asking_branch(part, request, text)
            text, cost = "", None
            async with aclosing(_chunks(chat, path, plan.n_summary_tokens)) as chunks:
                async for chunk in chunks:
                    heard = chunk if isinstance(chunk, PromptProgress) else None
                    chat.running = running = running.after(heard, chat.clock())
                    if isinstance(chunk, PromptProgress):
                        yield Reading(conversation.messages[_WRITING_ID], chunk)
                        continue
                    if isinstance(chunk, Completed):
                        cost = chunk
                        break
                    text += chunk.text
                    if number == len(plan.parts) and chunk.text:  # of a long chat only the last part is shown
                        written = replace(conversation.messages[_WRITING_ID], content=text)
                        conversation.messages[_WRITING_ID] = written
                        yield Written(written, chunk.text)
            if cost is None:
                raise RequestError("The summary did not end.", "/compact tries again.")
            text = checked_summary(text, is_cut=cost.finish_reason == "length")
        text = text or NO_SUMMARY
        n_after = plan.n_tokens_left + (cost.n_output_tokens if cost else estimated_tokens(text))
        stats: dict[str, Scalar] = {TOKENS_BEFORE: n_before, TOKENS_AFTER: n_after}
        stats |= asdict(cost) if cost else {}
        whole = replace(partial, content=with_files(text, plan.replaced), state=MessageState.FINISHED, stats=stats)
        message = await _added(chat, leaf_id, whole)
        conversation.remove(_WRITING_ID)
        conversation.begin(message)
        chat.measure_branch()
        yield Added(message)  # while it runs: it stays unfolded, as it was while it was written
        conversation.end(message)
    finally:
        chat.activity, conversation.part, conversation.running_id = "", (1, 1), None
        chat.running = None
        if _WRITING_ID in conversation.messages:
            conversation.remove(_WRITING_ID)
            conversation.leaf_id = leaf_id
    entry = conversation.entries()[-1]
    saved = f": {n_before:,} → {n_after:,} tokens"
    if cost is None:
        saved += f". {NO_SUMMARY}"
    elif cost.finish_reason == "length":
        saved += f". The summary did not end within {plan.n_summary_tokens:,} tokens and was cut"
    what = "Compacted" if cost else "Left out"
    yield Note(f"{what} {entry.n_summarised} message{'s' if entry.n_summarised != 1 else ''}{saved}")


async def _added(chat: ChatState, leaf_id: int | None, summary: MessageContent) -> Message:
    """Return the stored message of a summary; if this is cancelled none is stored."""
    adding = asyncio.ensure_future(chat.stored.add_message(leaf_id, summary))
    try:
        return await asyncio.shield(adding)
    except asyncio.CancelledError:
        await chat.stored.remove((await adding).id, leaf_id)
        raise


async def _chunks(
    chat: ChatState, path: Sequence[Message], n_tokens: int
) -> AsyncGenerator[StreamChunk | PromptProgress | Completed, None]:
    """Yield the answer to a branch that asks for a summary."""
    conversation = chat.conversation
    parts = await chat.stored.media_parts(conversation.media_files_of(path))
    options = conversation.settings.options
    asked: dict[str, Scalar] = {
        "temperature": _TEMPERATURE,
        "max_tokens": n_tokens,
        "think": think_of(options) or "off",
        **{name: options[name] for name in _KEPT_OPTIONS if name in options},
    }
    events = stream_answer(
        chat.connection,
        conversation.turns_of(path, parts),
        asked,
        lambda: chat.model_beside_connection,
        prompt_cache_key=chat.stored.prompt_cache_key,
        tools=chat.offered,
    )
    async with aclosing(events):
        async for event in events:
            yield event
