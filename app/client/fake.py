"""A scripted client for tests: the calls of `ServiceClient` without service, clock, disk or hub.

Owns the script that a test writes, and records the calls. Independent of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from app.client.fake_jobs import ScriptedJobs
from app.client.fake_library import ScriptedLibrary
from app.protocol.chat import AnswerEvent, Completed, GenerationOptions, MediaPart, Message, TextDelta
from app.protocol.errors import RequestError
from app.protocol.job import Job
from app.protocol.metering import ContextLength, MeteredKey, MeteredUsage
from app.protocol.plan import DevicePlan, PlanReport, PlanRequest, PlanSetting
from app.protocol.status import ModelStatus, ServiceStatus
from app.protocol.tools import ToolCall, ToolCallDelta, ToolDefinition
from quantizer.system.errors import UserError

_MIB = 1 << 20

# The guide on a processor.
PLAN = PlanReport(
    model="guide",
    verdict="fits",
    setting=PlanSetting(
        ctx=2048, cells=16384, kv_type="f16", sequences=8, ubatch=512, depth=512, flash_attention=False
    ),
    n_layers=7,
    devices=(
        DevicePlan(
            name="CPU",
            kind="cpu",
            layers=7,
            weights_bytes=9 * _MIB,
            kv_bytes=24 * _MIB,
            compute_bytes=170 * _MIB,
            free_bytes=8192 * _MIB,
            total_bytes=16384 * _MIB,
            bytes_per_s=20e9,
        ),
    ),
    decode_tps=900.0,
    best_tps=900.0,
    prefill_tps=9000.0,
    first_token_s=0.2,
    uncertainty=0.35,
    curve=(900.0,),
    warnings=(),
    remedies=(),
    gpu_layers=None,
    n_ctx_train=2048,
    kv_types=("f16", "q8_0"),
    measured=(),
    is_full=True,
)


COMPLETED = Completed(
    finish_reason="stop",
    n_prompt_tokens=40,
    n_cached_tokens=0,
    n_output_tokens=12,
    time_to_first_token_s=0.25,
    prefill_tokens_per_s=160.0,
    decode_tokens_per_s=48.0,
)
READY = ModelStatus(id="guide", state="ready", progress=1.0, n_ctx=2048, notices=(), error=None)
LOADING = replace(READY, state="loading", progress=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One answer: its reasoning, its text, then its calls, of which each has two deltas: id and name, and arguments.
    After `pause_after` deltas it waits for `ScriptedClient.resume`."""

    thoughts: tuple[str, ...] = ()
    deltas: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    ending: Completed | UserError = COMPLETED
    pause_after: int | None = None


class ScriptedClient(ScriptedJobs):
    """Answers the n-th request with the n-th reply; the last reply serves all later ones.

    `model` is what `status` reports. `requests` are those of `chat`, `prompts` those of `complete`, `options` of
    both; `ended_thoughts` are the answers whose thought was ended, `schemas` those checked, which raise `schema_error`;
    `loads` the loaded models, `n_aborted` counts answers that were closed before their end, `n_opened` and `n_closed`
    count uses of `opened`. `plan_answer` makes the plans; `plan_requests` are the requests of `plan`, `reloads` those
    of `reload`. `has_tools` is what its template has, `n_ctx_most` the longest context that fits, `metered` what
    requests with a metered key used; `n_keys` counts those that are open.
    """

    def __init__(self, *replies: ScriptedReply, model: ModelStatus = READY, jobs: Sequence[Job] = ()) -> None:
        super().__init__(*jobs)
        self.library = ScriptedLibrary()
        self.plan_answer: Callable[[PlanRequest], PlanReport] = lambda _: PLAN
        self.plan_requests: list[PlanRequest] = []
        self.reloads: list[PlanRequest] = []
        self.model = model
        self.requests: list[tuple[Message, ...]] = []
        self.prompts: list[str] = []
        self.schemas: list[object] = []
        self.forgotten_keys: list[str] = []
        self.ended_thoughts: list[str] = []
        self.cached_as: list[str] = []  # the conversation of each request, which `options` leave out
        self.schema_error: UserError | None = None
        self.loads: list[str] = []
        self.options: list[GenerationOptions] = []
        self.has_tools: bool | None = True
        self.n_ctx_most = 1 << 20
        self.metered = MeteredUsage()
        self.n_keys = 0
        self.n_aborted = 0
        self.n_opened = 0
        self.n_closed = 0
        self._replies = replies or (ScriptedReply(deltas=("Hello.",)),)
        self._may_go_on = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ScriptedClient]:
        """Yield this client, as `app.client.launcher.open_service` does."""
        self.n_opened += 1
        try:
            yield self
        finally:
            self.n_closed += 1

    def resume(self) -> None:
        """Resume a paused answer."""
        self._may_go_on.set()

    async def status(self) -> ServiceStatus:
        """Return `model` as the service's only model."""
        return ServiceStatus(
            version="0",
            default_model=self.model.id,
            models=(self.model,),
            stays_until="jobs-end" if self.is_staying else "",
        )

    async def load(self, model: str, when_unfit: str = "") -> str:  # noqa: ARG002 - the one model stands for every name
        """Record the call, and return the id of the only model."""
        self.loads.append(model)
        return self.model.id

    async def count_tokens(self, text: str, model: str = "") -> int:  # noqa: ARG002
        """Return the number of words."""
        return len(text.split())

    async def count_media_tokens(self, media: Sequence[MediaPart], model: str = "") -> int:  # noqa: ARG002
        """Return 64 for each."""
        return 64 * len(media)

    async def count_tool_tokens(self, tools: Sequence[ToolDefinition], model: str = "") -> int:  # noqa: ARG002
        """Return 100 for each."""
        return 100 * len(tools)

    def chat(
        self,
        messages: Sequence[Message],
        model: str = "",  # noqa: ARG002 - the script answers, whatever the model
        options: GenerationOptions | None = None,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the scripted answer, waiting for the model to be ready as the service does."""
        self.requests.append(tuple(messages))
        return self._answer(options)

    def complete(
        self,
        prompt: str,
        model: str = "",  # noqa: ARG002
        options: GenerationOptions | None = None,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the scripted answer as the continuation of `prompt`."""
        self.prompts.append(prompt)
        return self._answer(options)

    async def end_thought(self, response_id: str) -> None:
        """Record the answer, which is resumed."""
        self.ended_thoughts.append(response_id)
        self.resume()

    async def forget_prefixes(self, prompt_cache_keys: Sequence[str]) -> None:
        """Record the keys."""
        self.forgotten_keys.extend(prompt_cache_keys)

    async def check_schema(self, schema: object) -> None:
        """Raise `schema_error` where it is set."""
        self.schemas.append(schema)
        if self.schema_error is not None:
            raise self.schema_error

    async def _answer(self, options: GenerationOptions | None) -> AsyncGenerator[AnswerEvent, None]:
        options = options or GenerationOptions()
        self.cached_as.append(options.prompt_cache_key or options.prompt_cache_retention or "")
        self.options.append(replace(options, prompt_cache_key=None, prompt_cache_retention=None))
        reply = self._replies[min(len(self.options), len(self._replies)) - 1]
        is_whole = False
        try:
            deltas = _deltas(reply, f"answer-{len(self.options)}")
            for index, delta in enumerate(deltas):
                if index == reply.pause_after:
                    await self._paused()
                yield delta
            if reply.pause_after is not None and reply.pause_after >= len(deltas):
                await self._paused()
            is_whole = True
            if isinstance(reply.ending, UserError):
                raise reply.ending
            calls = bool(reply.calls) and reply.ending.finish_reason == "stop"
            yield replace(reply.ending, finish_reason="tool_calls") if calls else reply.ending
        finally:
            self.n_aborted += not is_whole

    async def plan(self, request: PlanRequest) -> PlanReport:
        """Return the scripted plan."""
        self.plan_requests.append(request)
        return self.plan_answer(request)

    async def reload(self, request: PlanRequest) -> str:
        """Record the request, and return its model."""
        self.reloads.append(request)
        return request.model or "guide"

    async def lengthen_context(self, model: str, n_ctx: int) -> ContextLength:  # noqa: ARG002
        """Lengthen the context of the only model up to `n_ctx_most`."""
        length = max(self.model.n_ctx, min(n_ctx, self.n_ctx_most))
        self.model = replace(self.model, n_ctx=length)
        return ContextLength(length, 0, "there is no free memory for more" if length < n_ctx else "")

    async def takes_tools(self, model: str) -> bool | None:  # noqa: ARG002
        """Return `has_tools`."""
        return self.has_tools

    async def metered_key(self) -> AsyncGenerator[MeteredKey, None]:
        """Yield one key."""
        self.n_keys += 1
        try:
            yield MeteredKey("run", "llm-run-secret")
            await asyncio.Event().wait()
        finally:
            self.n_keys -= 1

    async def metered_usage(self, key_id: str) -> MeteredUsage:
        """Return `metered`. Raises RequestError for an unknown key."""
        if key_id != "run" or not self.n_keys:
            raise RequestError("There is no such key.")
        return self.metered

    async def _paused(self) -> None:
        self._may_go_on.clear()
        await self._may_go_on.wait()


def _deltas(reply: ScriptedReply, response_id: str) -> list[TextDelta | ToolCallDelta]:
    """Return the pieces of an answer; each is a token."""
    said = [*((thought, "") for thought in reply.thoughts), *(("", text) for text in reply.deltas)]
    deltas: list[TextDelta | ToolCallDelta] = [
        TextDelta(text, number, thought, response_id) for number, (thought, text) in enumerate(said, 1)
    ]
    for index, call in enumerate(reply.calls):
        for begun in ({"call_id": call.call_id, "name": call.name}, {"arguments": call.arguments}):
            deltas.append(ToolCallDelta(index, len(deltas) + 1, **begun, response_id=response_id))
    return deltas
