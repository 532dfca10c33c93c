"""An open chat while it is answered: its messages and place in a store, the engine, the tools, and the figures so far.

The generators of this room (`exchange`, `stream`, `rounds`, `summaries`) take it, change it, and yield what happened.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from app.chat.backend import ChatBackend, ChatConnection, ConnectionState
from app.chat.branches import ContextSize
from app.chat.compaction import AutoCompaction, estimated_tokens
from app.chat.conversation import MessageContent, Scalar, searched_texts
from app.chat.events import Failed
from app.chat.repository import OpenedChat
from app.chat.sampling_options import template_of
from app.common.terminal import printable
from app.protocol.chat import Completed, PromptProgress, ThreadUse, Tool
from app.protocol.chat import Message as ChatMessage
from app.protocol.codec import encode
from app.protocol.errors import NoTemplateError
from app.tools.approval import KNOWLEDGE, ApprovalQuestion, Decision, ToolSettings
from app.tools.backend import ToolBackend
from app.tools.tool import KnownFiles
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.knowledge.texts import TextIndex
    from app.tools.server_requests import Form, FormValue

_MIN_RATE_SPAN_S = 0.2
_REASONING_S, _N_REASONING_TOKENS = "thought_s", "n_thought_tokens"  # keys of a message's stats
_N_CUT_TOKENS = "n_cut_reasoning_tokens"  # as `Completed`
_N_TOKENS, _FIRST_TOKEN_S, _RATE = "n_output_tokens", "time_to_first_token_s", "decode_tokens_per_s"  # as `Completed`
_NO_STATS: Mapping[str, Scalar] = MappingProxyType({})

Clock = Callable[[], float]
"""Returns seconds from any fixed point."""


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
        return cls(
            model=model,
            tokens_per_s=cost.decode_tokens_per_s,
            time_to_first_token_s=cost.time_to_first_token_s,
            n_context_tokens=cost.n_prompt_tokens + cost.n_output_tokens,
            cost=cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAnswer:
    """What is heard of the engine about a running answer, in moments of the chat's clock: when it was asked for, and
    when anything came last. `progress` is that of its prompt, None once it writes; `machine` says that other programs
    make it slower, as last heard."""

    begun_s: float
    heard_s: float
    progress: PromptProgress | None = None
    is_writing: bool = False
    machine: ThreadUse | None = None

    def after(self, heard: PromptProgress | None, now_s: float) -> RunningAnswer:
        """Return what is known after progress, or with None after a part of the answer."""
        if heard is None:
            return replace(self, heard_s=now_s, progress=None, is_writing=True)
        return replace(self, heard_s=now_s, progress=heard, machine=heard.machine)


class AnswerTimer:
    """Measures one answer from its creation on; the engine's figures replace the rates when it ends. `stats` are the
    figures of the reasoning for the message, at first those among `former_stats` of a continued answer."""

    def __init__(self, clock: Clock, former_stats: Mapping[str, Scalar] = _NO_STATS) -> None:
        keys = (_REASONING_S, _N_REASONING_TOKENS)
        self.stats: Mapping[str, Scalar] = {key: former_stats[key] for key in keys if key in former_stats}
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_first_tokens = 0
        self._n_tokens = 0
        self._reasoning_started_s: float | None = None

    def observe(self, n_tokens: int, n_thought_tokens: int | None = None) -> None:
        """Record a chunk: the answer has `n_tokens` now, of which `n_thought_tokens` are reasoning if it had any."""
        now_s = self._clock()
        self._n_tokens = n_tokens
        if self._first_s is None:
            self._first_s, self._n_first_tokens = now_s, n_tokens
        if n_thought_tokens is not None:
            if self._reasoning_started_s is None:
                self._reasoning_started_s = now_s
            self.stats = {_REASONING_S: now_s - self._reasoning_started_s, _N_REASONING_TOKENS: n_thought_tokens}

    def figures(self, model: str, n_context_before: int) -> AnswerFigures:
        """Return the figures of the running answer, whose request had about `n_context_before` tokens."""
        return AnswerFigures(
            model=model,
            tokens_per_s=self.tokens_per_s,
            time_to_first_token_s=self.time_to_first_token_s,
            n_context_tokens=n_context_before + self._n_tokens,
            is_context_estimated=True,
        )

    @property
    def final_stats(self) -> Mapping[str, Scalar]:
        """The stats of an answer that ends without the engine's figures: what was measured here."""
        first_s, rate = self.time_to_first_token_s, self.tokens_per_s
        measured = {_N_TOKENS: self._n_tokens or None, _FIRST_TOKEN_S: first_s, _RATE: rate}
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


_NO_TEMPLATE = (
    "It is a base model: /template completion lets it continue your text; /template lists templates to chat with it."
)


class ChatState:
    """What the generators share. Without `tools` calls are not run.

    `pinned_model` answers instead of the connection's model: it is set while another chat is shown. `other_model`
    answers this time only. `activity` is what runs, `running` what is heard of it while the engine works, and
    `thinking_id` names the running answer to the service while it has reasoning only. `offered` are the tools of the
    last request; `approvals` the calls that wait for the person.
    `known_files` are what its calls have read and written since it was opened: what another agent wrote is not lost.
    `may_compact` until a summary fails: the requests after that are sent as they are. `clean` makes a model's text safe
    to show. `keeps_file_texts` says whether texts of files are kept and used for drafts, by the settings.
    """

    def __init__(
        self,
        opened: OpenedChat,
        connection: ChatConnection,
        *,
        tools: ToolBackend | None = None,
        clock: Clock = time.monotonic,
        compaction: Callable[[], AutoCompaction] = AutoCompaction,
        on_approvals: Callable[[], None] = lambda: None,
        clean: Callable[[str], str] = printable,
        keeps_file_texts: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stored = opened.stored
        self.conversation = opened.conversation
        self.model_of_last_answer = opened.model
        self.connection = connection
        self.tools = tools
        self.clock = clock
        self.compaction = compaction
        self.clean = clean
        self.kept_texts: set[tuple[str, int]] = set()  # of files: corpus and hash of those that the engine was given
        self.known_files: KnownFiles = {}
        self._keeps_file_texts = keeps_file_texts
        self.pinned_model = self.other_model = ""
        self.activity: Literal["", "answering", "searching", "calling", "summarising"] = ""
        self.running: RunningAnswer | None = None
        self.thinking_id = ""
        self.offered: Sequence[Tool] = ()
        self._n_tool_tokens = 0  # of the tools that the next request offers, as far as known
        self._tool_counts: dict[str, int] = {}  # what an engine counted, by the tools as JSON
        self._n_counted_overhead: int | None = None  # in the last count of the branch; None: as it is set now
        self.approvals = ApprovalQueue(on_approvals)
        self.may_compact = True
        self.text_index: TextIndex | None = None  # of the attached texts that were searched last
        self._said: set[str] = set()
        self.figures = AnswerFigures(model=opened.model or self.model)
        self.measure_branch()

    @property
    def model(self) -> str:
        """The model that answers the next question."""
        return self.pinned_model or self.connection.state.model

    @property
    def answering_model(self) -> str:
        return self.other_model or self.model

    @property
    def model_beside_connection(self) -> str:
        """That model if it is not the connection's; else an empty string."""
        return self.other_model or self.pinned_model

    @property
    def draft_corpus(self) -> str:
        """What requests call the texts of files that chats of this folder read, "" where the chat keeps and uses none:
        in a private chat, and where the settings say so."""
        if not self._keeps_file_texts() or self.stored.prompt_cache_key == "":
            return ""
        from app.chat.draft_texts import corpus_of  # not at the start

        return corpus_of(self.conversation.settings.tools.folders)

    async def client(self) -> ChatBackend:
        """Return the client for the running answer: only the connection's own model must be ready. Raises UserError."""
        return await (self.connection.service() if self.model_beside_connection else self.connection.client())

    async def turns(self, leaf_id: int | None) -> Sequence[ChatMessage]:
        """Return the turns up to a message with their pictures and sounds. Raises StorageError for a missing one."""
        parts = await self.stored.media_parts(self.conversation.media_files(leaf_id))
        return self.conversation.turns(leaf_id, parts)

    @property
    def searches_first(self) -> bool:
        """Whether the person's folders are searched before each question: where the chat wants that, and where the
        model, as far as known, or its prompt template has no place for the tool that does it."""
        settings = self.conversation.settings
        if self.tools is None or not settings.tools.has_knowledge:
            return False
        takes_none = self.known_model is not None and self.known_model.takes_tools is False
        return settings.tools.searches_first or takes_none or bool(template_of(settings.options))

    def is_searched_for(self, branch: Sequence[MessageContent]) -> bool:
        """Whether passages are found for the question at the end of `branch` before it is sent."""
        return self.searches_first or bool(searched_texts(branch))

    @property
    def offered_settings(self) -> ToolSettings:
        """The settings of the tools that a request offers."""
        settings = self.conversation.settings.tools
        return settings.without(KNOWLEDGE) if self.searches_first else settings

    async def offer_tools(self) -> None:
        """Offer the tools that are switched on; none with a prompt template, which has no place for them."""
        settings = self.offered_settings
        if self.tools is None or not settings.enabled or template_of(self.conversation.settings.options):
            self.offered = ()
        else:
            self.offered = tuple(tool.definition for tool in await self.tools.offered(settings))
        self.expect_tools(self.offered)

    async def server_problems(self) -> tuple[str, ...]:
        """Return why servers that are switched on offer nothing now, such as one that wants a login; each once."""
        settings = self.offered_settings
        if self.tools is None or not settings.enabled or template_of(self.conversation.settings.options):
            return ()
        wanted = {name.partition("/")[0] for name in settings.enabled}
        failed = [each for each in await self.tools.servers() if each.state == "failed" and each.name in wanted]
        return self.new_sentences(*(each.problem for each in failed))

    def expect_tools(self, tools: Sequence[Tool], n_tokens: int | None = None) -> None:
        """Note which tools the next request offers, and how many tokens an engine counts for them, if it does."""
        text = json.dumps([encode(tool) for tool in tools]) if tools else ""
        if n_tokens is not None:
            self._tool_counts[text] = n_tokens
        self._n_tool_tokens = self._tool_counts.get(text, estimated_tokens(text))

    @property
    def _n_offered_tokens(self) -> int:
        return 0 if template_of(self.conversation.settings.options) else self._n_tool_tokens

    @property
    def _n_overhead(self) -> int:
        """The tokens of each prompt beside its messages: those of the system prompt and of the tools."""
        return estimated_tokens(self.conversation.settings.system) + self._n_offered_tokens

    def rename_model(self, formers: Collection[str], name: str) -> bool:
        """Give a model that has one of the `formers` names another one; return whether the chat has it."""
        messages = self.conversation.messages
        its = [message for message in messages.values() if message.model in formers]
        messages.update({message.id: replace(message, model=name) for message in its})
        is_its = self.pinned_model in formers or self.model_of_last_answer in formers
        self.pinned_model = name if self.pinned_model in formers else self.pinned_model
        self.model_of_last_answer = name if self.model_of_last_answer in formers else self.model_of_last_answer
        if self.figures.model in formers:
            self.figures = replace(self.figures, model=name)
        return bool(its) or is_its

    def begin_change(self) -> None:
        """Note what the branch was counted with, before system prompt, tools or template change; then
        `measure_branch`."""
        if self._n_counted_overhead is None:
            self._n_counted_overhead = self._n_overhead

    def note_count(self) -> None:
        """Note that an engine counted a prompt with what is set now."""
        self._n_counted_overhead = self._n_overhead

    @property
    def known_model(self) -> ConnectionState | None:
        """The model that answers, with what it can take as far as known; None for one beside the connection."""
        return None if self.model_beside_connection else self.connection.state

    def new_refusals(self) -> tuple[str, ...]:
        """Return what the model cannot take of what is switched on in this chat, each sentence once."""
        said = self.known_model.cannot_take(self.conversation.settings) if self.known_model is not None else ()
        return self.new_sentences(*said)

    def new_sentences(self, *sentences: str) -> tuple[str, ...]:
        """Return those that this did not return before in this chat, without empty ones."""
        new = tuple(sentence for sentence in sentences if sentence and sentence not in self._said)
        self._said.update(new)
        return new

    def context_size(self, leaf_id: int | None) -> ContextSize:
        """Return the context used up to a message, with the system prompt and the tools that the next request has: as
        the last answer counted it and as they were changed since then, or an estimate."""
        size = self.conversation.context_size(leaf_id)
        n_more = self._n_offered_tokens
        if self.conversation.is_counted(leaf_id):
            n_more = 0 if self._n_counted_overhead is None else self._n_overhead - self._n_counted_overhead
        return ContextSize(max(0, size.n_tokens + n_more), is_estimated=True) if n_more else size

    def measure_branch(self) -> None:
        """Update the size of the context after another branch is shown."""
        size = self.context_size(self.conversation.leaf_id)
        self.figures = replace(self.figures, n_context_tokens=size.n_tokens, is_context_estimated=size.is_estimated)

    def fail(self, message_id: int, error: UserError) -> Failed:
        """Keep the error below a message for this session, with the remedy that a chat has for it."""
        remedied = NoTemplateError(error.cause, _NO_TEMPLATE) if isinstance(error, NoTemplateError) else error
        self.conversation.errors[message_id] = remedied
        return Failed(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    question: ApprovalQuestion
    answer: asyncio.Future[Decision]


class ApprovalQueue:
    """Implements `app.tools.approval.Approver`. Calls `on_change` when a question comes or goes; `news` is set when one
    comes. `form` is what the person fills in now, None for nothing."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.news = asyncio.Event()
        self.form: Form | None = None
        self._on_change = on_change
        self._waiting: tuple[_Waiting, ...] = ()
        self._filled: asyncio.Future[Mapping[str, FormValue] | None] | None = None
        self._one_form = asyncio.Lock()

    @property
    def questions(self) -> tuple[ApprovalQuestion, ...]:
        """The questions that wait, the next one first."""
        return tuple(each.question for each in self._waiting)

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return what the person decides. Cancelling it withdraws the question."""
        asked = _Waiting(question, asyncio.get_running_loop().create_future())
        self._waiting = (*self._waiting, asked)
        self.news.set()
        self._on_change()
        try:
            return await asked.answer
        finally:
            self._remove(asked)

    def answer(self, question: ApprovalQuestion, decision: Decision) -> bool:
        """Answer this very question; return False, and decide nothing, if it does not wait any more or does not take
        that decision."""
        asked = next((each for each in self._waiting if each.question is question), None)
        if asked is None or asked.answer.done() or decision not in question.decisions:
            return False
        asked.answer.set_result(decision)
        self._remove(asked)  # now, so that the next one is shown before the next key
        return True

    async def fill(self, form: Form) -> Mapping[str, FormValue] | None:
        """Return what the person fills in, None where they do not. Cancelling it withdraws the form."""
        async with self._one_form:
            self.form, self._filled = form, asyncio.get_running_loop().create_future()
            self.news.set()
            self._on_change()
            try:
                return await self._filled
            finally:
                self.form = self._filled = None
                self._on_change()

    def filled(self, form: Form, values: Mapping[str, FormValue] | None) -> None:
        """Take what was filled into this very form; nothing if it does not wait any more."""
        if self.form is form and self._filled is not None and not self._filled.done():
            self._filled.set_result(values)

    def _remove(self, asked: _Waiting) -> None:
        if asked in self._waiting:
            self._waiting = tuple(each for each in self._waiting if each is not asked)
            self._on_change()
