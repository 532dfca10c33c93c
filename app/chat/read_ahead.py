"""What is read of a question before it is asked: the chat so far, attachments, what of the draft has settled.

`SettledText`, `ReadTarget` and `next_move` decide, and are pure; `ReadAhead` is the task that asks the service. What is
sent is what the question will be sent with, so that the question finds it computed. Which requests go first, and that
nothing is loaded, evicted or read on battery, is the service's.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from app.chat.branches import UNSAVED_ID
from app.chat.conversation import Attachment, MessageContent
from app.chat.sampling_options import template_of
from app.chat.session import OpenChat
from app.chat.state import Clock
from app.chat.stream import sent_options, taken_options
from app.chat.summaries import is_near
from app.common.common_prefix import n_common_prefix
from app.protocol.chat import GenerationOptions, Message, PromptProgress
from quantizer.system.errors import UserError

SETTLED_S = 2.0  # without a change, after which typed text is taken for what stays
PAUSE_S = 0.7  # after a change, before anything is decided: chats are leafed through, words are typed
LEAST_NEW_CHARACTERS = 48  # of text, some twelve tokens: fewer are read with the question
RETRY_S, MOST_RETRY_S = 5.0, 120.0  # after the service had something else to do; longer each time
SHOWN_TOKENS = 64  # fewer are read before anybody sees it
_ANY_QUESTION = "?"  # stands for the part of it that nobody knows

Move: TypeAlias = Literal["wait", "start", "stop", "restart"]

# Where a word is certain to have ended: before a blank, and in scripts without blanks after any sign.
_WORD_END = re.compile(r"(?<=\S)(?=\s)|(?<=[\u3001-\u30ff\u3400-\u9fff\uff00-\uff65])(?=.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Draft:
    """What is in the prompt, with the attachments it would be sent with; the cursor is before the character of that
    number. It replaces the question `edited_id`, None for a new one."""

    text: str = ""
    cursor: int = 0
    attachments: tuple[Attachment, ...] = ()
    edited_id: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """What a question is certain to begin with, as the service gets it: of the last message the beginning."""

    model: str
    messages: tuple[Message, ...]
    options: GenerationOptions

    def extends(self, other: ReadTarget) -> bool:
        """Return whether all of `other` is a beginning of this."""
        (*before, begun), (*others_before, others_begun) = self.messages, other.messages
        return (
            (self.model, self.options, before) == (other.model, other.options, others_before)
            and begun.media == others_begun.media
            and begun.content.startswith(others_begun.content)
        )

    @property
    def n_characters(self) -> int:
        """Those of the message that is not finished."""
        return len(self.messages[-1].content)


class SettledText:
    """How much of a text that is being typed has not changed for a while."""

    def __init__(self) -> None:
        self._text = ""
        self._since: list[tuple[int, float]] = []  # (end, moment): up to there nothing has changed since; both ascend

    def observe(self, text: str, now_s: float) -> None:
        """Note the text as it is now."""
        n_same = n_common_prefix(self._text, text)
        kept = [(end, since_s) for end, since_s in self._since if end < n_same]
        covering = next((since_s for end, since_s in self._since if end >= n_same), now_s)
        self._since = [*kept, (n_same, covering), *([(len(text), now_s)] if len(text) > n_same else [])]
        settled = [mark for mark in self._since if now_s - mark[1] >= SETTLED_S]
        self._since = [*settled[-1:], *self._since[len(settled) :]]
        self._text = text

    def beginning(self, cursor: int, now_s: float) -> str:
        """Return what of the text has settled: whole words before the one with the cursor, without blanks around."""
        settled = max((end for end, since_s in self._since if now_s - since_s >= SETTLED_S), default=0)
        if cursor < settled:  # the person is there
            settled = max((found.end() for found in re.finditer(r"\s", self._text[:cursor])), default=0)
        ends = [found.start() for found in _WORD_END.finditer(self._text[: settled + 1]) if found.start() <= settled]
        return self._text[: ends[-1]].lstrip() if ends else ""

    def next_settles_s(self, now_s: float) -> float | None:
        """Return the moment at which more of the text has settled than `now_s`, None where all of it has."""
        return min((since_s + SETTLED_S for _, since_s in self._since if now_s - since_s < SETTLED_S), default=None)


def next_move(wanted: ReadTarget | None, running: ReadTarget | None, read: ReadTarget | None) -> Move:
    """Return what to do: `wanted` is certain now, `running` is being read, `read` was read last."""
    if wanted is None:
        return "wait" if running is None else "stop"
    if running is not None:
        return "wait" if wanted.extends(running) else "restart"
    if read is not None and read.extends(wanted):
        return "wait"
    if read is not None and wanted.extends(read) and wanted.n_characters - read.n_characters < LEAST_NEW_CHARACTERS:
        return "wait"
    return "start"


class ReadAhead:
    """Lets the model of the shown chat read what is certain of the next question. `chat` and `draft` return what is
    shown and in the prompt, None for what is no question; nothing is read unless `is_on`. `on_change` is called when
    `words` change."""

    def __init__(
        self,
        chat: Callable[[], OpenChat],
        draft: Callable[[], Awaitable[Draft | None]],
        is_on: Callable[[], bool],
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._chat = chat
        self._draft = draft
        self._is_on = is_on
        self._on_change = on_change
        self._clock = clock
        self._typed = SettledText()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._running: ReadTarget | None = None
        self._read: ReadTarget | None = None
        self._looked_s = 0.0  # what has settled since then was not looked at
        self._refused: ReadTarget | None = None  # not read to its end: the service had something else to do
        self._retry_at_s = 0.0
        self._retry_after_s = RETRY_S
        self.words = ""  # for a person: "read 3,100 of 6,000"

    @property
    def is_reading(self) -> bool:
        return self._running is not None

    def look(self, text: str) -> None:
        """Note the text in the prompt, and that something may have changed: the draft, the chat, the model."""
        self._typed.observe(text, self._clock())
        if self._task is None and self._is_on():
            self._task = asyncio.create_task(self._run())
        self._wake.set()

    def stop(self) -> None:
        """End the reading: the question is asked, and goes on from what was read."""
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self._running = None
        self._say("")

    async def close(self) -> None:
        reading = self._reading
        self.stop()
        for task in (reading, self._task):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._task = None

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._wake.wait()
            await asyncio.sleep(PAUSE_S)
            self._wake.clear()
            self._looked_s = self._clock()
            wanted = None
            with suppress(UserError):  # the question reports it
                wanted = await self._target()
            move = next_move(wanted, self._running, self._read)
            if move in ("stop", "restart"):
                self.stop()
            read = self._read
            is_read = read is not None and wanted is not None and (wanted.extends(read) or read.extends(wanted))
            if self._running is None and not is_read:
                self._say("")
            if self._refused is not None and wanted is not None and not wanted.extends(self._refused):
                self._refused, self._retry_at_s, self._retry_after_s = None, 0.0, RETRY_S
            if move in ("start", "restart") and wanted is not None and self._looked_s >= self._retry_at_s:
                self._running = wanted
                self._reading = asyncio.create_task(self._read_all(wanted))

    def _wait_s(self) -> float | None:
        """Return how long nothing changes by itself that was not looked at yet."""
        settles_s = self._typed.next_settles_s(self._looked_s)
        moments_s = [] if settles_s is None else [settles_s]
        if self._running is None and self._retry_at_s > self._looked_s:
            moments_s.append(self._retry_at_s)
        return max(0.0, min(moments_s) - self._clock()) if moments_s else None

    async def _target(self) -> ReadTarget | None:
        """Return what the next question is certain to begin with, None where nothing may be read for it now. Raises
        UserError."""
        chat, draft = self._chat(), await self._draft()
        conversation, state = chat.conversation, chat.connection.state
        if draft is None or not self._is_on() or chat.is_answering or state.phase != "ready":
            return None
        if chat.model_beside_connection or template_of(conversation.settings.options):
            return None
        parent_id = conversation.leaf_id
        if draft.edited_id is not None:
            edited = conversation.messages.get(draft.edited_id)
            if edited is None or edited.role != "user":
                return None
            parent_id = edited.parent_id
        if parent_id == UNSAVED_ID or not await _can_offer_tools(chat):
            return None
        question = MessageContent(attachments=draft.attachments)
        # Passages that are found for the whole question come before it.
        is_searched_for = chat.is_searched_for((*conversation.path(parent_id), question))
        beginning = "" if is_searched_for else self._typed.beginning(draft.cursor, self._looked_s)
        question = replace(question, content=f"{beginning}{_ANY_QUESTION}")
        if is_near(chat, parent_id, question):  # older messages become a summary first
            return None
        await chat.offer_tools()
        path = conversation.path_with(question, parent_id)
        parts = await chat.stored.media_parts(conversation.media_files_of(path))
        *before, asked = conversation.turns_of(path, parts)
        begun = replace(asked, content=asked.content.removesuffix(_ANY_QUESTION))
        options = sent_options(taken_options(chat), chat.stored.prompt_cache_key, chat.draft_corpus, chat.offered)
        is_nothing = not (before or begun.content or begun.media or options.tools)
        return None if is_nothing else ReadTarget(chat.model, (*before, begun), options)

    async def _read_all(self, target: ReadTarget) -> None:
        last: PromptProgress | None = None
        try:
            with suppress(UserError):  # the question reports it
                client = await self._chat().connection.service()
                events = client.read_ahead(target.messages, target.model, target.options)
                async with aclosing(events):
                    async for last in events:
                        if last.n_tokens - last.n_cached >= SHOWN_TOKENS and self._running is target:
                            is_whole = last.n_read >= last.n_tokens
                            self._say("read" if is_whole else f"read {last.n_read:,} of {last.n_tokens:,}")
        finally:
            if self._running is target:  # not one that was stopped
                self._reading = self._running = None
                if last is not None and last.n_read >= last.n_tokens:
                    self._read, self._refused, self._retry_after_s = target, None, RETRY_S
                else:
                    self._say("")
                    self._refused = target
                    self._retry_at_s = self._clock() + self._retry_after_s
                    self._retry_after_s = min(2 * self._retry_after_s, MOST_RETRY_S)
                self._wake.set()

    def _say(self, words: str) -> None:
        if words != self.words:
            self.words = words
            self._on_change()


async def _can_offer_tools(chat: OpenChat) -> bool:
    """Return whether the tools of the next question are known without starting a program that the person has not used
    in this session: opening a chat starts none."""
    enabled = {name.partition("/")[0] for name in chat.conversation.settings.tools.enabled}
    if chat.tools is None or not enabled:
        return True
    servers = await chat.tools.servers()
    return all(each.state != "stopped" or each.origin == "built in" for each in servers if each.name in enabled)
