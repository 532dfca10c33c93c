"""An exchange: a question, its answer, and what that calls, until an answer calls nothing.

Each function is an async generator of what happens. Closing it, or cancelling the task that iterates, stops the answer
and keeps what came so far. An error ends an exchange as a `Failed` event, and is one of the conversation.
`aclosing` and the loop below it stand for `yield from`, which async generators do not have.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from app.chat.branches import UNSAVED_ID, RemovedMessages
from app.chat.conversation import Message, MessageContent, WrittenElsewhereError, placed
from app.chat.events import Added, Changed, ChatEvent, Events, Failed, Note, Paused
from app.chat.repository import AnswerTarget
from app.chat.rounds import RoundLimitError, pause_after, rounds_of, run_calls
from app.chat.state import ChatState
from app.chat.stream import answer
from app.chat.summaries import is_near, make_room
from app.chat.turns import made_calls
from app.protocol.errors import ContextOverflowError
from quantizer.system.errors import StorageError


async def ask(chat: ChatState, question: MessageContent, parent_id: int | None) -> Events:
    """Store `question` after a message, and answer it. One that cannot be stored is not sent."""
    question = MessageContent(role="user", content=question.content, attachments=question.attachments)
    try:
        await chat.stored.prepare(question.content, chat.model, chat.conversation.settings)
        message = await chat.stored.add_message(parent_id, question)
    except StorageError as error:
        chat.conversation.add(placed(question, UNSAVED_ID, parent_id))
        yield chat.fail(UNSAVED_ID, error)
        return
    chat.conversation.add(message)
    yield Added(message)
    async with aclosing(exchange(chat, AnswerTarget(message.id, chat.model))) as events:
        async for event in events:
            yield event


async def ask_again(chat: ChatState, question: Message) -> Events:
    """Answer `question` once more; the former answer stays as a version, unless it is blank."""
    conversation = chat.conversation
    for message in list(conversation.messages.values()):
        is_blank = not message.content and not message.reasoning and not message.calls
        if message.parent_id == question.id and message.role == "assistant" and is_blank:
            try:
                await remove(chat, message.id)
            except WrittenElsewhereError:
                continue  # another window has begun it: it is a version
            except StorageError as error:
                yield chat.fail(question.id, error)
                return
    leaf_id = conversation.summary_after(question.id) or question.id
    async with aclosing(exchange(chat, AnswerTarget(leaf_id, chat.model))) as events:
        async for event in events:
            yield event


async def compare(chat: ChatState, target: AnswerTarget) -> Events:
    """Answer with another model beside the shown branch, which ends with the new answer. If that fails or is stopped,
    the chat goes on where it was; of an answer without a word not even a version is left."""
    conversation, former_leaf_id, known = chat.conversation, chat.conversation.leaf_id, set(chat.conversation.messages)
    refusal = ""
    try:
        async with aclosing(exchange(chat, target)) as events:
            async for event in events:
                yield event
    finally:
        error = conversation.errors.get(conversation.leaf_id or UNSAVED_ID)
        is_paused = isinstance(error, RoundLimitError)  # then Ctrl+G goes on with the calls of the new answer
        begun = [message for message in conversation.branch if message.id not in known]
        if begun and not conversation.is_answered and not is_paused:
            is_blank = not any(message.content or message.reasoning or message.calls for message in begun)
            conversation.compared_id = None if is_blank else begun[0].id
            refusal = f"{target.model} gave no answer. {error}" if is_blank and error is not None else ""
            try:
                if is_blank:
                    await remove(chat, begun[0].id)
                conversation.leaf_id = former_leaf_id
                await chat.stored.show(former_leaf_id)
            except StorageError as unsaved:
                chat.fail(conversation.leaf_id or UNSAVED_ID, unsaved)
            chat.measure_branch()
    yield Note(refusal) if refusal else Changed()


async def go_on(chat: ChatState, unfinished: Message) -> Events:
    """Continue an unfinished answer: its text, or after its calls. Calls that were never begun run now, one that was
    begun is never run again; the rounds are counted anew."""
    branch = chat.conversation.branch
    if unfinished.role == "tool" or made_calls(unfinished):
        chat.conversation.errors.pop(chat.conversation.leaf_id or UNSAVED_ID, None)  # the question whether to go on
        following = exchange(chat, None, len(rounds_of(branch)))
    elif unfinished.content:
        model = unfinished.model or chat.model
        following = exchange(chat, AnswerTarget(unfinished.parent_id, model, unfinished))
    else:  # without text, after calls: answered in its place
        try:
            if not unfinished.reasoning:
                await remove(chat, unfinished.id)
        except StorageError as error:
            yield chat.fail(unfinished.id, error)
            return
        target = AnswerTarget(unfinished.parent_id, chat.model)
        following = exchange(chat, target, len(rounds_of(chat.conversation.branch)))
    async with aclosing(following) as events:
        async for event in events:
            yield event


async def exchange(chat: ChatState, target: AnswerTarget | None, n_granted: int = 0) -> Events:
    """Answer, run what the answer calls, and answer again, until an answer calls nothing; without a target, begin with
    the calls. `n_granted` rounds since the question are not counted."""
    conversation = chat.conversation
    try:
        await chat.stored.prepare("", chat.model, conversation.settings)  # keeps a change of model or settings
        while True:
            if target is not None:
                async with aclosing(_answer_with_room(chat, target)) as answering:
                    async for event in answering:
                        yield event
            last = conversation.branch[-1]
            if last.role != "tool" and not made_calls(last):
                from app.chat.draft_texts import keep_file_texts  # not at the start

                await keep_file_texts(chat)
                return
            async with aclosing(run_calls(chat)) as calls:
                async for event in calls:
                    yield event
            pause = pause_after(conversation.branch, conversation.settings.tools.max_rounds, n_granted)
            if pause is not None and conversation.leaf_id is not None:
                chat.fail(conversation.leaf_id, pause)
                yield Paused(pause)
                return
            former = target or AnswerTarget(None, chat.model)
            target = replace(former, parent_id=conversation.leaf_id, continued=None)
    except StorageError as error:
        assert conversation.leaf_id is not None
        yield chat.fail(conversation.leaf_id, error)


async def _answer_with_room(chat: ChatState, target: AnswerTarget, *, may_retry: bool = True) -> Events:
    """Make room if the request needs it, and answer; once more where the request did not fit and a summary helps."""
    await chat.offer_tools()
    for problem in await chat.server_problems():
        yield Note(problem)
    if chat.may_compact and _may_need_room(target) and is_near(chat, target.parent_id):
        async with aclosing(make_room(chat, target.parent_id)) as summary:
            async for event in summary:
                target = _below_summary(event, target)
                yield event
    async with chat.stored.writing(target) as writer, aclosing(answer(chat, writer, target)) as answering:
        async for event in answering:
            yield event
    failed = writer.message
    overflow = _curable_overflow(chat, target, failed)
    if overflow is None or not may_retry:
        return
    former = target
    async with aclosing(make_room(chat, target.parent_id, overflow=overflow)) as summary:
        async for event in summary:
            target = _below_summary(event, target)
            yield event
    if target is former:  # no summary: the failed answer is shown again
        chat.conversation.leaf_id = failed.id
        await chat.stored.show(failed.id)
        yield Failed(overflow)
        return
    await remove(chat, failed.id)
    chat.conversation.errors.pop(failed.id, None)
    async with aclosing(_answer_with_room(chat, target, may_retry=False)) as events:
        async for event in events:
            yield event


async def remove(chat: ChatState, message_id: int) -> RemovedMessages:
    """Remove a message with its descendants. Raises StorageError, having removed nothing; a WrittenElsewhereError where
    another window goes on with them."""
    removed = chat.conversation.remove(message_id)
    if message_id != UNSAVED_ID:
        try:
            await chat.stored.remove(message_id, chat.conversation.leaf_id)
        except StorageError:
            chat.conversation.restore(removed)
            raise
        chat.measure_branch()
    return removed


def _may_need_room(target: AnswerTarget) -> bool:
    """Return whether older messages may be summarised before a request: not where an answer is continued or compared,
    which belongs below the messages as they are."""
    return target.continued is None and not target.is_other and target.parent_id is not None


def _below_summary(event: ChatEvent, target: AnswerTarget) -> AnswerTarget:
    return replace(target, parent_id=event.message.id) if isinstance(event, Added) else target


def _curable_overflow(chat: ChatState, target: AnswerTarget, failed: Message) -> ContextOverflowError | None:
    """Return the overflow that ended an answer before its first word, if a summary may make room and is wanted."""
    overflow = chat.conversation.errors.get(failed.id)
    if not isinstance(overflow, ContextOverflowError) or failed.content or failed.reasoning:
        return None
    return overflow if _may_need_room(target) and chat.may_compact and chat.compaction().is_on else None
