"""The rounds of an answer: which calls are to be run, running one, and whether the model answers again.

Owns how a call is stored: as a message of role "tool" before it runs, with each change before that is made, and when it
ends; one that is stopped in the middle as cancelled. Whether a call may run, and all that it does, is `app.tools`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from app.chat.branches import LiveCall
from app.chat.conversation import Attachment, Message, MessageContent, MessageState
from app.chat.events import ApprovalNeeded, Calling, Events, FormNeeded, Result
from app.chat.state import ChatState
from app.chat.turns import made_calls
from app.protocol.chat import MediaPart, ToolCall
from app.tools.approval import ApprovalQuestion, next_step, repeat_note
from app.tools.backend import CallRequest, FinishedCall, ToolBackend
from app.tools.tool import MAX_CHARACTERS, ToolOutcome, ToolProgress, ToolResult, characters_for, cleaned
from quantizer.system.errors import StorageError, UserError

if TYPE_CHECKING:
    from app.tools.server_requests import Form

SHOWN_AFTER_S = 0.1  # the pace of a terminal: a tool may report progress a thousand times a second
_STOPPED = "The user stopped this call in the middle. What it did until then is not undone."
_WITHDRAWN = "The user stopped the answer before this call was allowed. It did not run."
_GO_ON = "/continue lets it go on."


class RoundLimitError(UserError):
    """The person is asked whether the model may go on calling tools."""


def rounds_of(branch: Sequence[Message]) -> list[tuple[ToolCall, ...]]:
    """Return the calls of each answer since the last question."""
    start = max((index for index, message in enumerate(branch) if message.role == "user"), default=0)
    return [calls for message in branch[start:] if (calls := made_calls(message))]


def pending_calls(branch: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls of the answer that ends the branch, before its results, which were never begun."""
    begun: set[str] = set()
    for message in reversed(branch):
        if message.role != "tool":
            return tuple(call for call in made_calls(message) if call.call_id not in begun)
        if message.result is not None:
            begun.add(message.result.call_id)
    return ()


def pause_after(branch: Sequence[Message], max_rounds: int, n_granted: int) -> RoundLimitError | None:
    """Return the question to the person after the rounds of a branch, None where the model simply answers next;
    `n_granted` rounds are not counted."""
    step = next_step(rounds_of(branch), max_rounds, n_granted)
    return None if step.is_allowed else RoundLimitError(step.text, _GO_ON)


async def run_calls(chat: ChatState) -> Events:
    """Run the calls of the last answer that were not begun, in order; without tools none. Raises StorageError for a
    call that cannot be stored, which then does not run."""
    if chat.tools is None:
        return
    chat.activity = "calling"
    try:
        # A denied call is a result like any other: the next one still runs.
        for call in pending_calls(chat.conversation.branch):
            async with aclosing(_run_call(chat, chat.tools, call)) as events:
                async for event in events:
                    yield event
    finally:
        chat.activity = ""


async def _run_call(chat: ChatState, tools: ToolBackend, call: ToolCall) -> Events:
    """Run `call`, whose tool and arguments may be anything, as a message below the one before. Stopping it stops the
    call and stores that."""
    message_id = (await _store_begun(chat, call)).id
    messages = chat.conversation.messages
    news = chat.approvals.news
    news.clear()
    running = asyncio.create_task(_run_to_end(chat, tools, call, message_id))
    running.add_done_callback(lambda _: news.set())
    asked: ApprovalQuestion | Form | None = None
    finished: FinishedCall | None = None
    attachments: tuple[Attachment, ...] = ()
    try:
        yield Calling(messages[message_id])
        while not running.done():
            await news.wait()
            news.clear()
            question = next(iter(chat.approvals.questions), None)
            if question is not None and question is not asked:
                asked = question
                yield ApprovalNeeded(question)
            elif (form := chat.approvals.form) is not None and form is not asked:
                asked = form
                yield FormNeeded(form)
            elif not running.done():
                yield Calling(messages[message_id])
                await asyncio.wait({running}, timeout=SHOWN_AFTER_S)
        finished, attachments = running.result()
    finally:
        # Shielded: whoever stops twice must not leave a call that is stored as running.
        ending = _end(chat, message_id, finished, attachments) if finished else _stop(chat, message_id, running)
        await asyncio.shield(ending)
    yield Result(messages[message_id])
    gained = (*((finished.rule,) if finished.rule is not None else ()), *finished.request_rules)
    if gained:
        settings = chat.conversation.settings
        rules = tuple(dict.fromkeys((*settings.tools.rules, *gained)))  # the person's answer for further calls
        chat.conversation.settings = replace(settings, tools=replace(settings.tools, rules=rules))
        await chat.stored.prepare("", chat.model, chat.conversation.settings)


async def _store_begun(chat: ChatState, call: ToolCall) -> Message:
    """Return the stored message of a call, which exists even if this is cancelled: then as a call that did not run."""
    result = ToolResult(call_id=call.call_id, tool=call.name, title=call.name)
    begun = MessageContent(role="tool", content="", state=MessageState.PARTIAL, result=result)
    adding = asyncio.ensure_future(chat.stored.add_message(chat.conversation.leaf_id, begun))
    try:
        message = await asyncio.shield(adding)
    except asyncio.CancelledError:
        message = await adding
        chat.conversation.begin(message)
        await asyncio.shield(_end(chat, message.id, _cancelled(result, _WITHDRAWN)))
        raise
    chat.conversation.begin(message)
    return message


async def _run_to_end(
    chat: ChatState, tools: ToolBackend, call: ToolCall, message_id: int
) -> tuple[FinishedCall, tuple[Attachment, ...]]:
    """Return the end of a call, with its pictures and sounds, which are stored. Sets the news of `approvals` when there
    is more to show of it."""
    conversation, news = chat.conversation, chat.approvals.news

    def on_progress(progress: ToolProgress) -> None:
        conversation.live[message_id] = conversation.live.get(message_id, LiveCall()).after(progress)
        news.set()

    async def on_update(result: ToolResult) -> None:
        await chat.stored.write_result(message_id, result)
        conversation.messages[message_id] = replace(conversation.messages[message_id], result=result)
        news.set()

    n_ctx = chat.connection.state.n_ctx
    max_characters = characters_for(n_ctx) if n_ctx else MAX_CHARACTERS
    settings = conversation.settings.tools
    from app.chat.request_helper import ChatHelper  # not at the start

    helper = ChatHelper(chat)
    request = CallRequest(
        call, settings, chat.approvals, on_progress, on_update, max_characters, helper, chat.known_files
    )
    try:
        finished = await tools.run(request)
    except UserError as error:
        failed = replace(_result(chat, message_id), outcome=ToolOutcome.FAILED, detail=error.cause)
        return FinishedCall(str(error), failed), ()
    attachments, faults = await _kept_media(chat, finished.media) if finished.media else ((), ())
    made = [made for calls in rounds_of(conversation.branch) for made in calls]
    so_far = made[: len(made) - len(pending_calls(conversation.branch))]
    text = "\n".join((finished.text, *(f"[{fault}]" for fault in faults)))
    note = repeat_note(so_far)
    return replace(finished, text=f"{text}\n\n{note}" if note else text), attachments


async def _kept_media(chat: ChatState, media: Sequence[MediaPart]) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Return the pictures and sounds of a result, read as what a person attaches and then stored, and sentences about
    those that the model does not get. A full disk loses no more than them: the call has run."""
    from app.chat.attachments.parser_process import ReadBudget  # few results have any
    from app.chat.attachments.reader import read_result_media

    budget = ReadBudget()
    try:
        read, faults = await asyncio.to_thread(read_result_media, media, budget)
        await chat.stored.keep_files({sha256: data for each in read for sha256, data in each.contents.items()})
    except StorageError as error:
        return (), (error.cause,)
    except asyncio.CancelledError:
        budget.stop()
        raise
    return tuple(each.attachment for each in read), tuple(map(cleaned, faults))


async def _stop(
    chat: ChatState, message_id: int, running: asyncio.Task[tuple[FinishedCall, tuple[Attachment, ...]]]
) -> None:
    text = _WITHDRAWN if chat.approvals.questions else _STOPPED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await _end(chat, message_id, _cancelled(_result(chat, message_id), text))


def _cancelled(result: ToolResult, text: str) -> FinishedCall:
    return FinishedCall(text, replace(result, outcome=ToolOutcome.CANCELLED))


async def _end(
    chat: ChatState, message_id: int, finished: FinishedCall, attachments: tuple[Attachment, ...] = ()
) -> None:
    conversation, text, result = chat.conversation, finished.text, finished.result
    try:
        await chat.stored.finish_call(message_id, text, result, attachments)
    finally:
        conversation.live.pop(message_id, None)
        message = conversation.messages[message_id]
        ended = replace(message, content=text, result=result, attachments=attachments, state=MessageState.FINISHED)
        conversation.end(ended)


def _result(chat: ChatState, message_id: int) -> ToolResult:
    result = chat.conversation.messages[message_id].result
    assert result is not None, "the message of a call has its result from the first moment"
    return result
