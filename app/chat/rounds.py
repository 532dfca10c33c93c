"""The rounds of an answer: which calls are to be run, running one, and whether the model answers again.

Owns how a call is stored: as a message of role "tool" before it runs, with each change before that is made, and when it
ends; one that is stopped in the middle as cancelled. Whether a call may run, and all that it does, is `app.tools`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol

from app.chat.branches import Conversation, LiveCall
from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.repository import AnswerTarget, StoredChat
from app.chat.sampling_options import template_of
from app.chat.turns import made_calls
from app.protocol.chat import Tool, ToolCall
from app.tools.approval import ApprovalQuestion, Approver, Decision
from app.tools.backend import CallRequest, FinishedCall, ToolBackend
from app.tools.output import MAX_CHARACTERS, characters_for
from app.tools.result import ToolOutcome, ToolResult
from app.tools.rounds import next_step, repeat_note
from app.tools.tool import ToolProgress
from app.tools.tool_settings import ApprovalRule
from quantizer.system.errors import UserError

SHOWN_AFTER_S = 0.1
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
    """Return the question to the person after the rounds of a branch, None where the model simply answers next."""
    step = next_step(rounds_of(branch), max_rounds, n_granted)
    return None if step.is_allowed else RoundLimitError(step.text, _GO_ON)


class CallingChat(Protocol):
    """What rounds need of the open chat."""

    stored: StoredChat
    conversation: Conversation
    approver: Approver

    @property
    def model(self) -> str:
        """The model that answers the next question."""

    @property
    def n_ctx(self) -> int:
        """The context of the model in tokens, 0 if unknown."""


class Rounds:
    """The rounds of a chat's answers. `is_calling` while what an answer called is run. `show` draws the messages;
    `on_change` is called when `is_calling` changes. Without `tools` calls are not run. Methods raise StorageError."""

    def __init__(
        self,
        chat: CallingChat,
        tools: ToolBackend | None,
        show: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.is_calling = False
        self._chat = chat
        self._tools = tools
        self._show = show
        self._on_change = on_change
        self._calls = None if tools is None else CallRunner(chat.stored, chat.conversation, tools, show)

    async def offered(self) -> tuple[Tool, ...]:
        """Return the tools that are switched on; none with a prompt template, which has no place for them."""
        settings = self._chat.conversation.settings
        if self._tools is None or not settings.tools.enabled or template_of(settings.options):
            return ()
        return tuple(tool.definition for tool in await self._tools.offered(settings.tools))

    async def after(self, target: AnswerTarget, n_granted: int) -> AnswerTarget | None:
        """Run the calls of the last answer that were not begun. Return what to answer next, as `target` was; None
        after an answer without calls, and where the person is asked whether to go on: `n_granted` rounds are not
        counted."""
        conversation = self._chat.conversation
        last = conversation.branch[-1]
        if last.role != "tool" and not made_calls(last):
            return None
        self._set_calling(True)
        try:
            await self._run_calls()
        finally:
            self._set_calling(False)
        pause = pause_after(conversation.branch, conversation.settings.tools.max_rounds, n_granted)
        if pause is not None and conversation.leaf_id is not None:
            conversation.errors[conversation.leaf_id] = pause
            await self._show()
            return None
        return replace(target, parent_id=conversation.leaf_id, continued=None)

    def _set_calling(self, is_calling: bool) -> None:
        self.is_calling = is_calling
        self._on_change()

    async def _run_calls(self) -> None:
        if self._calls is None:
            return
        max_characters = characters_for(self._chat.n_ctx) if self._chat.n_ctx else MAX_CHARACTERS
        for call in pending_calls(self._chat.conversation.branch):
            finished = await self._calls.run(call, self._chat.approver, max_characters)
            if finished.rule is not None:
                await self._add_rule(finished.rule)

    async def _add_rule(self, rule: ApprovalRule) -> None:
        """Store what the person decided for further calls of this chat."""
        conversation = self._chat.conversation
        settings = conversation.settings
        rules = tuple(dict.fromkeys((*settings.tools.rules, rule)))
        conversation.settings = replace(settings, tools=replace(settings.tools, rules=rules))
        await self._chat.stored.prepare("", self._chat.model, conversation.settings)


class CallRunner:
    """Runs calls of a chat one after the other, each as a message below the one before. `show` draws the messages.

    Methods raise StorageError for a call that cannot be stored, which then does not run.
    """

    def __init__(
        self, stored: StoredChat, conversation: Conversation, backend: ToolBackend, show: Callable[[], Awaitable[None]]
    ) -> None:
        self._stored = stored
        self._conversation = conversation
        self._backend = backend
        self._show = show
        self._has_news = asyncio.Event()

    async def run(self, call: ToolCall, approver: Approver, max_characters: int) -> FinishedCall:
        """Run `call`, whose tool and arguments may be anything. Cancelling it stops the call and stores that."""
        result = ToolResult(call_id=call.call_id, tool=call.name, title=call.name)
        begun = MessageContent(role="tool", content="", state=MessageState.PARTIAL, result=result)
        message = await self._added(begun)
        watched = _WatchedApprover(approver)
        finished: FinishedCall | None = None
        try:
            async with self._drawn_along():
                finished = await self._finished(call, message.id, watched, max_characters)
        except asyncio.CancelledError:
            if finished is None:
                stopped = replace(self._result(message.id), outcome=ToolOutcome.CANCELLED)
                finished = FinishedCall(_WITHDRAWN if watched.is_asking else _STOPPED, stopped)
            await asyncio.shield(self._end(message.id, finished))
            raise
        await asyncio.shield(self._end(message.id, finished))
        return finished

    async def _added(self, begun: MessageContent) -> Message:
        """Return the stored message of a call, which exists even if this is cancelled: then as a call that did not
        run."""
        adding = asyncio.ensure_future(self._stored.add_message(self._conversation.leaf_id, begun))
        try:
            message = await asyncio.shield(adding)
        except asyncio.CancelledError:
            message = await adding
            self._conversation.begin(message)
            stopped = replace(self._result(message.id), outcome=ToolOutcome.CANCELLED)
            await asyncio.shield(self._end(message.id, FinishedCall(_WITHDRAWN, stopped)))
            raise
        self._conversation.begin(message)
        return message

    async def _finished(self, call: ToolCall, message_id: int, approver: Approver, max_characters: int) -> FinishedCall:
        def on_progress(progress: ToolProgress) -> None:
            live = self._conversation.live
            live[message_id] = live.get(message_id, LiveCall()).after(progress)
            self._has_news.set()

        async def on_update(result: ToolResult) -> None:
            await self._stored.write_result(message_id, result)
            self._replace(message_id, result=result)
            self._has_news.set()

        settings = self._conversation.settings.tools
        try:
            finished = await self._backend.run(
                CallRequest(call, settings, approver, on_progress, on_update, max_characters)
            )
        except UserError as error:
            failed = replace(self._result(message_id), outcome=ToolOutcome.FAILED, detail=error.cause)
            return FinishedCall(str(error), failed)
        made = [made for calls in rounds_of(self._conversation.branch) for made in calls]
        so_far = made[: len(made) - len(pending_calls(self._conversation.branch))]
        note = repeat_note(so_far)
        return replace(finished, text=f"{finished.text}\n\n{note}") if note else finished

    async def _end(self, message_id: int, finished: FinishedCall) -> None:
        text, result = finished.text, finished.result
        try:
            await self._stored.finish_call(message_id, text, result)
        finally:
            self._conversation.live.pop(message_id, None)
            self._replace(message_id, content=text, result=result, state=MessageState.FINISHED)
            self._conversation.end(self._conversation.messages[message_id])
        await self._show()

    @asynccontextmanager
    async def _drawn_along(self) -> AsyncIterator[None]:
        """Draw the call and what changes while it runs, at the pace of a terminal. After the block nothing is drawn."""
        await self._show()
        ended = asyncio.Event()
        drawing = asyncio.create_task(self._show_until(ended))
        try:
            yield
        finally:
            ended.set()
            self._has_news.set()
            await drawing

    async def _show_until(self, ended: asyncio.Event) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if ended.is_set():
                return
            await self._show()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), SHOWN_AFTER_S)

    def _result(self, message_id: int) -> ToolResult:
        result = self._conversation.messages[message_id].result
        assert result is not None, "the message of a call has its result from the first moment"
        return result

    def _replace(self, message_id: int, **values: object) -> None:
        messages = self._conversation.messages
        messages[message_id] = replace(messages[message_id], **values)  # type: ignore[arg-type]  # fields of a message


class _WatchedApprover:
    """Knows whether the person is being asked just now: a call that is stopped then did not run."""

    def __init__(self, approver: Approver) -> None:
        self._approver = approver
        self.is_asking = False

    async def ask(self, question: ApprovalQuestion) -> Decision:
        self.is_asking = True
        decision = await self._approver.ask(question)
        self.is_asking = False
        return decision
