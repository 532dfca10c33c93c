"""A scripted client: the calls of `ServiceClient` without service, clock, disk or hub, and a record of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.protocol.chat import (
    AnswerDelta,
    AnswerEvent,
    Completed,
    GenerationOptions,
    MediaPart,
    Message,
    PromptProgress,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from app.protocol.errors import RequestError
from app.protocol.job import Job, JobKind, JobState
from app.protocol.library import (
    HubRepository,
    LocalModel,
    LocalModels,
    MachineReport,
    ModelUpdate,
    Recommendation,
    Recommendations,
    Recommended,
    RemovalResult,
    TypeChoice,
)
from app.protocol.plan import DevicePlan, PlanReport, PlanRequest, PlanSetting
from app.protocol.speech import Said
from app.protocol.status import (
    AnswerRecord,
    ContextLength,
    Evictions,
    MeteredKey,
    MeteredUsage,
    ModelStatus,
    ServiceStatus,
)
from app.protocol.transcript import Transcribed, TranscriptEvent
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UserError


class ScriptedLibrary:
    """The library that a test describes. Its calls are in `searched`, `removed`, `imported` and `keep_alives`.

    `hub_error` is raised by every search where it is set. `files` are paths that can be imported.
    """

    def __init__(self, here: Sequence[LocalModel] = (), others: Sequence[LocalModel] = ()) -> None:
        self.here = list(here)
        self.others = list(others)
        self.folder = ""
        self.skipped: tuple[str, ...] = ()
        self.recommended: tuple[Recommended, ...] = ()
        self.catalogue_notice = ""
        self.hub: tuple[HubRepository, ...] = ()
        self.hub_error: UserError | None = None
        self.type_choices: tuple[TypeChoice, ...] = ()
        self.model_info_rows: tuple[tuple[str, str], ...] = ()
        self.machine_report = MachineReport((), ())
        self.model_updates: tuple[ModelUpdate, ...] = ()
        self.searched: list[str] = []
        self.removed: list[str] = []
        self.imported: list[str] = []
        self.files: dict[str, LocalModel] = {}
        self.keep_alives: list[tuple[str, str]] = []

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels:
        """Return `here`, and with `external` `others` too."""
        found = (*self.here, *(self.others if external else ()))
        return LocalModels(found, is_complete=True, folder=self.folder, skipped=self.skipped)

    async def recommend(self) -> Recommendations:
        """Return `recommended` with `catalogue_notice`."""
        found = (Recommendation(each.role, each.why, each) for each in self.recommended)
        return Recommendations(tuple(found), self.catalogue_notice)

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return the repositories of `hub` whose names have all `words`."""
        self.searched.append(words)
        if self.hub_error is not None:
            raise self.hub_error
        return tuple(repo for repo in self.hub if all(word in repo.repo.lower() for word in words.lower().split()))[
            :limit
        ]

    async def updates(self, model: str = "") -> tuple[ModelUpdate, ...]:
        """Return `model_updates`, of `model` alone if given."""
        if self.hub_error is not None:
            raise self.hub_error
        return tuple(update for update in self.model_updates if model in ("", update.id, update.path))

    async def show(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return `model_info_rows`. Raises ModelFileError for an unknown model."""
        self._named(model)
        return self.model_info_rows

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return `type_choices`. Raises ModelFileError for an unknown model."""
        self._named(model)
        return self.type_choices

    async def machine(self) -> MachineReport:
        """Return `machine_report`."""
        return self.machine_report

    async def import_model(self, source: str, name: str = "") -> str:
        """Add another program's model, or one of `files`, to `here`."""
        model = self._named(source)
        self.imported.append(source)
        path = f"{model.path.rpartition('/')[0]}/{name}.gguf" if name and model.where == "library" else model.path
        self.here.append(replace(model, id=name or model.id, where="library", path=path))
        return self.here[-1].id

    async def removal(self, model: str) -> RemovalResult:
        """Return what would be removed: one file."""
        found = self._named(model)
        return RemovalResult(found.id, (found.path,), found.n_bytes)

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model."""
        going = await self.removal(model)
        self.removed.append(model)
        self.here = [found for found in self.here if model not in (found.id, found.path)]
        return going

    async def unload(self, model: str) -> None:
        """Unload a model at once."""
        found = self._named(model)
        unloaded = replace(found, state="unloaded", expires_s=None)
        self.here = [unloaded if each is found else each for each in self.here]

    async def keep_alive(self, model: str, duration: str) -> None:
        """Record the keep-alive of a model."""
        self._named(model)
        self.keep_alives.append((model, duration))

    def _named(self, name: str) -> LocalModel:
        for model in (*self.here, *self.others, *self.files.values()):
            if name in (model.id, model.path):
                return model
        raise ModelFileError(f"There is no model {name!r}.")


class ScriptedJobs:
    """The jobs of a service that runs none: they wait until a test changes them with `change`.

    `started` are the kinds and arguments of the started ones, `logs` their logs by id.
    """

    def __init__(self, *jobs: Job) -> None:
        self.started: list[tuple[JobKind, dict[str, Any]]] = []
        self.logs: dict[str, str] = {}
        self.is_staying = False
        self._jobs = {job.id: job for job in jobs}
        self._watchers: list[asyncio.Queue[Job]] = []

    def change(self, job: Job) -> None:
        """Replace a job, and notify all watchers."""
        self._jobs[job.id] = job
        for watcher in self._watchers:
            watcher.put_nowait(job)

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, oldest first."""
        return tuple(self._jobs.values())

    async def job(self, job_id: str) -> Job:
        """Return one job. Raises RequestError for an unknown id."""
        if job_id not in self._jobs:
            raise RequestError(f"There is no job {job_id}.")
        return self._jobs[job_id]

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Add a waiting job, as job-1, job-2 ..."""
        self.started.append((kind, dict(arguments)))
        number = len(self._jobs) + 1
        title = " ".join([kind, *(str(value) for value in arguments.values())])
        job = Job(id=f"job-{number}", kind=kind, title=title, arguments=dict(arguments), created_s=float(number))
        self.change(job)
        return job

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job, then each changed one."""
        watcher: asyncio.Queue[Job] = asyncio.Queue()
        for job in self._jobs.values():
            watcher.put_nowait(job)
        self._watchers.append(watcher)
        try:
            while True:
                yield await watcher.get()
        finally:
            self._watchers.remove(watcher)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job as it changes, until it has ended."""
        await self.job(job_id)
        async for job in self.watch_jobs():
            if job.id == job_id:
                yield job
                if job.has_ended:
                    return

    async def job_log(self, job_id: str) -> str:
        """Return the log of the job in `logs`."""
        return self.logs.get((await self.job(job_id)).id, "")

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a job at once."""
        return await self._become(job_id, "cancelled", has_ended=False)

    async def retry_job(self, job_id: str) -> Job:
        """Queue a job again that ended without a result."""
        if (await self.job(job_id)).state == "done":
            raise RequestError(f"The job {job_id} is done.", "Start a new job to do it again.")
        return await self._become(job_id, "queued", has_ended=True)

    async def forget_job(self, job_id: str) -> None:
        """Delete an ended job."""
        await self._become(job_id, "forgotten", has_ended=True)
        del self._jobs[job_id]

    async def stay_until_jobs_end(self) -> None:
        """Record that the service is to stay."""
        self.is_staying = True

    async def _become(self, job_id: str, state: JobState, *, has_ended: bool) -> Job:
        job = await self.job(job_id)
        if job.has_ended != has_ended:
            raise RequestError(f"The job {job_id} is {job.state}.")
        job = replace(job, state=state, error=None)
        self.change(job)
        return job


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
    """One answer: the progress of its prompt, its reasoning, its text, then its calls, of which each has two deltas: id
    and name, and arguments. After `pause_after` of these it waits for `ScriptedClient.resume`."""

    progress: tuple[PromptProgress, ...] = ()
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
    of `reload`, `answers` what `status` lists. `has_tools` is what its template has, `n_ctx_most` the longest context
    that fits, `metered` what requests with a metered key used; `n_keys` counts those that are open.
    `sounds` are those of `transcribe`: path, content and model;
    `spoken` the texts of `speak` with their models.
    """

    def __init__(self, *replies: ScriptedReply, model: ModelStatus = READY, jobs: Sequence[Job] = ()) -> None:
        super().__init__(*jobs)
        self.library = ScriptedLibrary()
        self.notices: tuple[str, ...] = ()
        self.answers: tuple[AnswerRecord, ...] = ()
        self.answers_since_s = 0.0
        self.plan_answer: Callable[[PlanRequest], PlanReport] = lambda _: PLAN
        self.plan_requests: list[PlanRequest] = []
        self.reloads: list[PlanRequest] = []
        self.model = model
        self.requests: list[tuple[Message, ...]] = []
        self.prompts: list[str] = []
        self.read_ahead_requests: list[tuple[tuple[Message, ...], str, GenerationOptions]] = []
        self.reading: tuple[PromptProgress, ...] = ()
        self.holds_reading = False
        self.n_whole_readings = self.n_ended_readings = 0
        self.schemas: list[object] = []
        self.forgotten_keys: list[str] = []
        self.kept_texts: list[tuple[str, tuple[str, ...], str | None]] = []
        self.keep_error: UserError | None = None
        self.ended_thoughts: list[str] = []
        self.sounds: list[tuple[Path, bytes, str]] = []
        self.heard = "what was said"
        self.spoken: list[tuple[str, str]] = []
        self.speak_error: UserError | None = None
        self.may_transcribe = asyncio.Event()
        self.may_transcribe.set()
        self.cached_as: list[str] = []  # the conversation of each request, which `options` leave out, as its texts
        self.corpora: list[str | None] = []
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
            answers=self.answers,
            answers_since_s=self.answers_since_s,
        )

    async def load(self, model: str, when_unfit: str = "") -> str:
        """Record the call, and return the id of the only model."""
        self.loads.append(model)
        return self.model.id

    async def count_tokens(self, text: str, model: str = "") -> int:
        """Return the number of words."""
        return len(text.split())

    async def count_media_tokens(self, media: Sequence[MediaPart], model: str = "") -> int:
        """Return 64 for each."""
        return 64 * len(media)

    async def count_tool_tokens(self, tools: Sequence[Tool], model: str = "") -> int:
        """Return 100 for each."""
        return 100 * len(tools)

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the scripted answer, waiting for the model to be ready as the service does."""
        self.requests.append(tuple(messages))
        return self._answer(options)

    async def transcribe(
        self, path: Path, model: str = "", fields: Mapping[str, str] | None = None, *, translates: bool = False
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Record the sound at `path` with the model, and yield `heard` as its text once `may_transcribe` is set."""
        self.sounds.append((path, path.read_bytes(), model))  # noqa: ASYNC240 - small
        await self.may_transcribe.wait()
        yield Transcribed(self.heard, "", 1.0, 1, 1)

    async def speak(
        self, text: str, model: str = "", voice: str = "", fields: Mapping[str, object] | None = None
    ) -> AsyncGenerator[Said, None]:
        """Record the text with the model, and yield a second of silence for each paragraph; raise `speak_error`."""
        self.spoken.append((text, model))
        if self.speak_error is not None:
            raise self.speak_error
        for paragraph in text.split("\n\n"):
            yield Said(samples=bytes(48_000), sample_rate=24_000, text=paragraph)

    async def read_ahead(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[PromptProgress, None]:
        """Record what is to be read, and yield the progress of `reading`; with `holds_reading` never end."""
        self.read_ahead_requests.append((tuple(messages), model, options or GenerationOptions()))
        try:
            for progress in self.reading:
                yield progress
            if self.holds_reading:
                await asyncio.Event().wait()
            self.n_whole_readings += 1
        finally:
            self.n_ended_readings += 1

    def complete(
        self, prompt: str, model: str = "", options: GenerationOptions | None = None
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

    async def keep_draft_texts(
        self, draft_corpus: str, texts: Sequence[str], prompt_cache_key: str | None = None
    ) -> None:
        """Record the texts, and raise `keep_error` where it is set."""
        if self.keep_error is not None:
            raise self.keep_error
        self.kept_texts.append((draft_corpus, tuple(texts), prompt_cache_key))

    async def check_schema(self, schema: object) -> None:
        """Raise `schema_error` where it is set."""
        self.schemas.append(schema)
        if self.schema_error is not None:
            raise self.schema_error

    async def _answer(self, options: GenerationOptions | None) -> AsyncGenerator[AnswerEvent, None]:
        options = options or GenerationOptions()
        self.cached_as.append(options.prompt_cache_key or options.prompt_cache_retention or "")
        self.corpora.append(options.draft_corpus)
        self.options.append(replace(options, prompt_cache_key=None, prompt_cache_retention=None, draft_corpus=None))
        reply = self._replies[min(len(self.options), len(self._replies)) - 1]
        is_whole = False
        try:
            deltas = (*reply.progress, *_deltas(reply, f"answer-{len(self.options)}"))
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

    async def lengthen_context(self, model: str, n_ctx: int) -> ContextLength:
        """Lengthen the context of the only model up to `n_ctx_most`."""
        length = max(self.model.n_ctx, min(n_ctx, self.n_ctx_most))
        self.model = replace(self.model, n_ctx=length)
        return ContextLength(length, 0, "there is no free memory for more" if length < n_ctx else "")

    async def evictions(self, model: str, n_ctx: int = 0) -> Evictions:
        """Nothing would be unloaded: the only model is the one that is asked about."""
        return Evictions(runs=True)

    async def takes_tools(self, model: str) -> bool | None:
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


def _deltas(reply: ScriptedReply, response_id: str) -> list[AnswerDelta]:
    """Return the pieces of an answer; each is a token."""
    said = [*((thought, "", ()) for thought in reply.thoughts), *(("", text, ()) for text in reply.deltas)]
    for index, call in enumerate(reply.calls):
        said.append(("", "", (ToolCallDelta(index, call.call_id, call.name),)))
        said.append(("", "", (ToolCallDelta(index, arguments=call.arguments),)))
    return [
        AnswerDelta(text, number, thought, calls, response_id) for number, (thought, text, calls) in enumerate(said, 1)
    ]
