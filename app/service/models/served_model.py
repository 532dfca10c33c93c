"""A model under one of its names, as requests use it: its engine, which other names may share, counts as used by it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.common.answer_text import reasoning_tags_of
from app.engine.messages import BackendFacts, Embedded, EngineConfig, Reranked, Speak, Spoken, UnfitPolicy
from app.engine.request import MediaInput, Request, Timings, Usage
from app.library.local.model_files import ModelRef
from app.protocol.errors import ContextOverflowError
from app.protocol.status import LEAST_MEASURED_TOKENS, AnswerRecord, ContextLength
from app.service.generation.template_caps import TemplateProbe
from app.service.generation.thinking import can_be_told, reads_tools
from app.service.http.access_log import RequestRecord
from app.service.models.model_file import ModelFile, Senses
from app.service.pool.background import PromptAfter
from app.service.pool.context_growth import room_for_answer
from app.service.pool.engine_client import EngineClient, EngineStatus
from app.service.pool.engine_pool import IdleLimit, KeepAlive, SharedEngine
from app.service.pool.worker_process import AnswerEvent
from app.service.tools.formats import tool_format_of
from offload.devices.host import runs_on_battery

_MAX_RECENT = 50
_LEAST_MEASURED_S = 0.02  # less says more about one step than about the speed


class TemplateRenderer(Protocol):
    """Renders chat templates; see `app.engine.chat_template.template_process`."""

    async def render(
        self, template: str, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str: ...

    async def close(self) -> None: ...


class RecentAnswers:
    """The figures of the newest answers of a service, for who asks how fast it is. They are not stored: `since_s`,
    counted from 1970, is when they begin."""

    def __init__(self) -> None:
        self.since_s = time.time()
        self._records: deque[AnswerRecord] = deque(maxlen=_MAX_RECENT)

    @property
    def newest_first(self) -> tuple[AnswerRecord, ...]:
        return tuple(reversed(self._records))

    def add(self, model_id: str, usage: Usage, timings: Timings, at_s: float) -> None:
        n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
        self._records.append(
            AnswerRecord(
                model=model_id,
                at_s=at_s,
                n_prompt_tokens=usage.n_prompt_tokens,
                n_cached_tokens=usage.n_cached_tokens,
                n_output_tokens=usage.n_output_tokens,
                first_token_s=timings.time_to_first_token_s,
                prefill_tps=_measured_rate(n_computed, timings.prefill_s),
                decode_tps=_measured_rate(usage.n_output_tokens - 1, timings.decode_s),
            )
        )


def _measured_rate(n_tokens: int, seconds: float) -> float | None:
    is_enough = n_tokens >= LEAST_MEASURED_TOKENS and seconds >= _LEAST_MEASURED_S
    return round(n_tokens / seconds, 3) if is_enough else None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its engine. `ref.id` is its name for clients, `adapters` the names of those it may run with.
    `keep_alive` is this name's hold on the `shared` engine. `template_probe` knows what chat templates take and print.
    `record` counts the tokens of one request, whose uses set the `idle_limit`; `answers` are those of all models."""

    ref: ModelRef
    file: ModelFile
    shared: SharedEngine
    keep_alive: KeepAlive
    renderer: TemplateRenderer
    adapters: tuple[str, ...] = ()
    can_prefill_ahead: bool = True
    template_probe: TemplateProbe = field(default_factory=TemplateProbe, compare=False)
    record: RequestRecord = field(default_factory=RequestRecord, compare=False)
    idle_limit: IdleLimit | None = field(default=None, compare=False)
    answers: RecentAnswers = field(default_factory=RecentAnswers, compare=False)

    def for_request(self, record: RequestRecord, idle_limit: IdleLimit | None = None) -> ServedModel:
        """Return the same model, counting in `record`; once used, it stays loaded for `idle_limit`."""
        record.model_id, record.engine = self.ref.id, self.engine
        return replace(self, record=record, idle_limit=idle_limit)

    def for_chat(self, *, has_tools: bool) -> ServedModel:
        return replace(self, file=self.file.for_chat(has_tools=has_tools))

    @property
    def engine(self) -> EngineClient:
        """The engine, which may answer under other names too. Use it under this one: `in_use`."""
        return self.shared.engine

    @property
    def status(self) -> EngineStatus:
        """The state of the engine for this name: "unloaded" where only other names hold it."""
        return self.engine.status if self.keep_alive.is_holding else EngineStatus(state="unloaded")

    @property
    def senses(self) -> Senses:
        """What the model reads besides text: as loaded, or as its file says before that."""
        facts = self.engine.status.facts
        return Senses(self.file.sees, self.file.hears) if facts is None else Senses(facts.sees, facts.hears)

    @property
    def takes_tools(self) -> bool:
        """Whether its chat template has a place for tools, or writes calls in a known form."""
        templates = (self.file.chat_template, self.file.tool_template)
        return any(reads_tools(template) or tool_format_of(template) is not None for template in templates)

    @property
    def thinks(self) -> bool:
        """Whether it can be told how much to think, or reasons by itself."""
        template = self.file.chat_template
        return can_be_told(template) or reasoning_tags_of(template, "").has_reasoning

    @property
    def can_grow(self) -> bool:
        """Whether a prompt that needs a longer context is worth a try."""
        facts = self.engine.status.facts
        return facts is not None and self.shared.growth.is_possible and facts.n_ctx < self.file.n_ctx_train

    @property
    def is_loaded(self) -> bool:
        """Whether the engine is loaded, or loading, under this name."""
        return self.status.state in ("loading", "ready")

    @property
    def is_busy(self) -> bool:
        return self.keep_alive.is_used or self.status.state == "loading"

    @contextmanager
    def in_use(self) -> Iterator[EngineClient]:
        """Give the engine, which this name holds inside the context and for the idle time after it."""
        with self.keep_alive.in_use(self.idle_limit):
            yield self.engine

    def load(self, when_unfit: UnfitPolicy | None = None) -> None:
        """Begin to load without a request, which counts as a use: the idle time begins anew."""
        self.keep_alive.hold()
        self.engine.start(when_unfit)
        self.keep_alive.restart_timer()

    def reload(self, change: Callable[[EngineConfig], EngineConfig], *, until_unloaded: bool = False) -> None:
        """Begin to load again with a changed config; running requests fail. See `EngineClient.reload`."""
        self.keep_alive.hold()
        self.engine.reload(change, until_unloaded=until_unloaded)

    def prefill_ahead(self, request: Request, prompt_after: PromptAfter) -> None:
        """Prefill what follows the answer to `request`, if the settings allow that; a batch has no next turn."""
        if self._reads_ahead and self.record.priority == 0:
            self.shared.prefill_ahead.begin(replace(request, owner=self.record.owner), prompt_after)

    @property
    def may_read_ahead(self) -> bool:
        """Whether something may be read before a question: the settings allow it, the model is loaded and answers
        nobody, and the machine does not run on its battery."""
        is_free = self.status.state == "ready" and self.engine.is_available and not self.engine.is_answering
        return is_free and self._reads_ahead

    @property
    def _reads_ahead(self) -> bool:
        return self.can_prefill_ahead and not runs_on_battery()

    async def read_ahead(self, request: Request) -> AsyncGenerator[Usage, None]:
        """Compute the prompt of `request`, which reads ahead, until a question comes; yield its usage if that was the
        whole prompt. This is no use: the model is not loaded for it, nor kept loaded."""
        usage = await self.shared.prefill_ahead.read(replace(request, owner=self.record.owner))
        if usage is not None:
            yield usage

    async def ready(self) -> BackendFacts:
        with self.in_use() as engine:
            return await engine.ready()

    async def lengthen_context(self, n_ctx: int) -> ContextLength:
        """Load the model with a context of `n_ctx` tokens, or as many of them as fit; see `ContextGrowth.lengthen`."""
        with self.in_use() as engine:
            await engine.ready()
            reason = await self.shared.growth.lengthen(n_ctx, self.file.n_ctx_train)
            return ContextLength((await engine.ready()).n_ctx, self.file.n_ctx_train, reason)

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests`, cancelling prefilling ahead, unless they are of a batch; see `EngineClient.answer`. A prompt
        that is too long for the context, or leaves an answer no room, loads the engine again with a longer one, once,
        where that is possible."""
        if self.record.priority == 0:
            self.shared.prefill_ahead.cancel()
        self.record.begin()
        with self.in_use() as engine:
            async with aclosing(self._events(engine, requests)) as events:
                yield events

    async def _events(self, engine: EngineClient, requests: Sequence[Request]) -> AsyncGenerator[AnswerEvent, None]:
        growth, has_begun, overflow = self.shared.growth, False, None
        requests = [
            replace(request, priority=min(request.priority, self.record.priority), owner=self.record.owner)
            for request in requests
        ]
        first = [replace(request, min_room=room_for_answer(request)) for request in requests]
        try:
            async with engine.answer(*(first if growth.is_possible else requests)) as events:
                async for event in events:
                    has_begun = True
                    yield event
        except ContextOverflowError as error:
            if has_begun:  # another of the requests has answered
                raise
            overflow = error
        if overflow is None:
            return
        n_answer = max(map(room_for_answer, requests))
        if notice := await growth.make_room(overflow, n_answer, self.file.n_ctx_train):
            self.record.notices.append(notice)
        async with engine.answer(*requests) as events:
            async for event in events:
                yield event

    async def embed(self, inputs: Sequence[str | tuple[int, ...]], *, cuts: bool = False) -> Embedded:
        self.record.begin()
        with self.in_use() as engine:
            embedded = await engine.embed(inputs, cuts=cuts)
        self.record.add(embedded.n_tokens)
        return embedded

    async def rerank(self, query: str, documents: Sequence[str]) -> Reranked:
        with self.in_use() as engine:
            return await engine.rerank(query, documents)

    async def speak(self, message: Speak) -> AsyncGenerator[Spoken, None]:
        """Yield the sentences of `message` as they are said; see `EngineClient.speak`."""
        self.record.begin()
        with self.in_use() as engine:
            async with engine.speak(message) as events:
                async for event in events:
                    if isinstance(event, Spoken):
                        yield event
                    else:
                        self.record.add(event.usage.n_prompt_tokens, event.usage.n_output_tokens)

    async def n_tokens(
        self, prompt: str | tuple[int, ...], *, add_special: bool, media: tuple[MediaInput, ...] = ()
    ) -> int:
        """Return how many tokens `prompt` has for this model, with those of its `media`."""
        if isinstance(prompt, tuple):
            return len(prompt)
        with self.in_use() as engine:
            return len(await engine.tokenize(prompt, add_special=add_special, parse_special=True, media=media))
