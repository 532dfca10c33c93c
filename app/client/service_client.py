"""The typed client of the service: loading, chat, plans, jobs and, through `library`, models.

Owns these calls. Independent of how the service is started (`app.client.launcher` does that), and of engines.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from app.client.connection import (
    CallReader,
    Connection,
    Upload,
    chat_body,
    completed_of,
    completion_body,
    progress_of,
    stated_number,
    stated_text,
)
from app.client.httpx_alone import httpx
from app.common.service_identity import STOP_PATH, ServiceIdentity, new_challenge
from app.protocol.chat import AnswerDelta, AnswerEvent, GenerationOptions, MediaPart, Message, PromptProgress, Tool
from app.protocol.codec import decode, encode
from app.protocol.job import Job, JobKind
from app.protocol.library import (
    HubRepository,
    LocalModels,
    MachineReport,
    ModelUpdate,
    Recommendations,
    RemovalResult,
    TypeChoice,
)
from app.protocol.plan import PlanReport, PlanRequest
from app.protocol.speech import Said
from app.protocol.status import ContextLength, Evictions, MeteredKey, MeteredUsage, ServiceStatus
from app.protocol.transcript import Segment, Transcribed, TranscriptEvent

_ROOT = "/api/localllm"
_JOBS = f"{_ROOT}/jobs"
_APART = {"reasoning_format": "deepseek"}  # thoughts apart from the answer


class LibraryClient:
    """The service's library. Every method raises ServiceError where it is unreachable, and the errors it reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def models(self, *, external: bool = False, fresh: bool = False) -> LocalModels:
        """Return the models, with `external` those of other programs too; `fresh` measures free memory again."""
        return decode(LocalModels, await self._get("library", external=int(external), fresh=int(fresh)))

    async def recommend(self) -> Recommendations:
        return decode(Recommendations, await self._get("recommend"))

    async def search(self, words: str, limit: int = 10) -> tuple[HubRepository, ...]:
        """Return the repositories of the hub whose names contain `words`; cancelling ends the search. Raises UserError
        where the hub is unreachable."""
        data = await self._get("search", words=words, limit=limit)
        return tuple(decode(HubRepository, item) for item in data["repositories"])

    async def updates(self, model: str = "") -> tuple[ModelUpdate, ...]:
        """Return whether the hub has newer revisions of a model, or of all; cancelling ends it. Raises UserError where
        the hub is unreachable."""
        data = await self._get("updates", model=model)
        return tuple(decode(ModelUpdate, item) for item in data["updates"])

    async def show(self, model: str) -> tuple[tuple[str, str], ...]:
        """Return the model info as labels and texts, not yet safe for a terminal."""
        return tuple((label, text) for label, text in (await self._get("show", model=model))["rows"])

    async def types(self, model: str) -> tuple[TypeChoice, ...]:
        """Return size, loss and fit of a model in each type. Raises UserError for one that cannot be quantized."""
        return tuple(decode(TypeChoice, item) for item in (await self._get("types", model=model))["types"])

    async def machine(self) -> MachineReport:
        """Return the service's machine and its problems; takes some seconds."""
        return decode(MachineReport, await self._get("machine"))

    async def import_model(self, source: str, name: str = "") -> str:
        """Import a model into the library by a link, and return its id."""
        return str((await self._post("import", source=source, name=name))["id"])

    async def removal(self, model: str) -> RemovalResult:
        """Return what removing a model would delete. Raises UsageError for a model outside the library."""
        return decode(RemovalResult, await self._post("remove", model=model, dry_run=True))

    async def remove(self, model: str) -> RemovalResult:
        """Remove a model and return what was deleted. Raises RequestError for a loaded one."""
        return decode(RemovalResult, await self._post("remove", model=model))

    async def unload(self, model: str) -> None:
        """Unload a model. Raises RequestError for a busy one."""
        await self._post("unload", model=model)

    async def keep_alive(self, model: str, duration: str) -> None:
        """Set how long an idle model stays loaded: "5m", "-1" forever."""
        await self._post("keep-alive", model=model, keep_alive=duration)

    async def _get(self, path: str, **query: str | int) -> Any:
        return await self._connection.call("GET", f"{_ROOT}/{path}?{urlencode(query)}")

    async def _post(self, path: str, **body: object) -> Any:
        return await self._connection.call("POST", f"{_ROOT}/{path}", body)


class ServiceClient(Connection):
    """An open connection to the service at `base_url`. Use it as an async context manager. Every method raises
    ServiceError when the service cannot be reached, and the error that the service reports. `library` has the calls
    about models on the disk and on the hub. `is_staying` is True once `stay_until_jobs_end` was called: the service
    then outlives the process that started it."""

    def __init__(self, base_url: str, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(base_url, api_key, transport)
        self.library = LibraryClient(self)
        self.is_staying = False

    async def status(self) -> ServiceStatus:
        return decode(ServiceStatus, await self.call("GET", f"{_ROOT}/status"))

    async def stop(self, identity: ServiceIdentity, *, if_unused: bool = False) -> str:
        """End the service once the running answers are complete; with `if_unused` only where nobody uses it. Return
        the number of its process, "" where it goes on. Raises RequestError where `identity` is not its own."""
        challenge = new_challenge()
        body = {"challenge": challenge, "proof": identity.proof("end the service", challenge), "if_unused": if_unused}
        answer = await self.call("POST", STOP_PATH, body)
        return str(int(answer["process_id"])) if answer["is_stopping"] else ""

    async def load(self, model: str, when_unfit: str = "") -> str:
        """Start loading `model` (guide, a name or a path to a GGUF) and return its id without waiting for it.
        `when_unfit` is the policy for a model that fits only partly: "warn", "ask", "load", or "" for the service's."""
        data = await self.call("POST", f"{_ROOT}/load", {"model": model, "when_unfit": when_unfit or None})
        return str(data["id"])

    async def count_tokens(self, text: str, model: str = "") -> int:
        return len((await self.call("POST", "/tokenize", {"content": text, "model": model}))["tokens"])

    async def count_media_tokens(self, media: Sequence[MediaPart], model: str = "") -> int:
        """Return how many tokens of a prompt pictures and sounds take. Raises RequestError where `model` does not read
        them."""
        questions = (Message("user", "?"), Message("user", "?", tuple(media)))
        alone, together = [chat_body([question], model, None)["messages"] for question in questions]
        return await self._n_more_tokens(model, {"input": alone}, {"input": together})

    async def count_tool_tokens(self, tools: Sequence[Tool], model: str = "") -> int:
        """Return how many tokens of each prompt the definitions of `tools` take."""
        functions = [{"type": "function", **encode(tool)} for tool in tools]
        return await self._n_more_tokens(model, {"input": "?"}, {"input": "?", "tools": functions})

    async def _n_more_tokens(self, model: str, *bodies: dict[str, Any]) -> int:
        """Return how many more tokens the prompt of the second body has than that of the first."""
        path = "/v1/responses/input_tokens"
        fewer, more = [await self.call("POST", path, {"model": model, **body}) for body in bodies]
        return int(more["input_tokens"]) - int(fewer["input_tokens"])

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the answer as it is made and, last, one Completed. Closing the iterator stops the answer. Waits while
        the model is loading. Raises ContextOverflowError when the conversation does not fit."""
        return self._streamed("/v1/chat/completions", {**_APART, **chat_body(messages, model, options)})

    async def read_ahead(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[PromptProgress, None]:
        """Let the model read what a question is certain to begin with: as `chat` would send it, its last message as far
        as it is written. Yield how much is read, last all of it. Ends early where a question comes first, at once where
        nothing may be read now. Closing the iterator ends it; what was read stays cached."""
        async with aclosing(
            self.events("POST", f"{_ROOT}/read-ahead", {**_APART, **chat_body(messages, model, options)})
        ) as events:
            async for event in events:
                yield decode(PromptProgress, event)

    async def _streamed(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[AnswerEvent, None]:
        reason = "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        calls = CallReader()
        reported = {"timings_per_token": True, "return_progress": True}
        async with aclosing(self.events("POST", path, {**reported, **body})) as events:
            async for event in events:
                news: list[AnswerEvent] = []
                with self._parsing():
                    if "prompt_progress" in event:
                        progress = progress_of(event["prompt_progress"])
                        # Every answer has two more, as llama-server's clients expect: what was cached, and that all is
                        # read.
                        is_between = progress.elapsed_s > 0 and progress.n_read < progress.n_tokens
                        if is_between or not progress.n_tokens:
                            news.append(progress)
                    else:
                        for choice in event["choices"]:
                            delta = choice.get("delta") or {"content": choice.get("text")}
                            text = stated_text(delta.get("content"), "content")
                            reasoning = stated_text(delta.get("reasoning_content"), "reasoning_content")
                            pieces = calls.read(delta.get("tool_calls"))
                            if text or reasoning or pieces:
                                n_tokens = int(stated_number(event["timings"], "predicted_n"))
                                news.append(AnswerDelta(text, n_tokens, reasoning, pieces, str(event["id"])))
                            reason = stated_text(choice["finish_reason"], "finish_reason") or reason
                        usage = event.get("usage") or usage
                        timings = event.get("timings") or timings
                for each in news:
                    yield each
        with self._parsing():
            completed = completed_of(reason, usage, timings)
        yield completed

    def complete(
        self, prompt: str, model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the continuation of `prompt` as `chat` yields an answer. Raises as `chat`."""
        return self._streamed("/v1/completions", completion_body(prompt, model, options))

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        """Return the vector of each text by an embedding model, of length 1, as little-endian float32. Texts longer
        than its context are cut. Loads the model where needed. Raises RequestError for another model."""
        body = {"model": model, "input": list(texts), "encoding_format": "base64", "truncate": True}
        answer = await self.call("POST", "/v1/embeddings", body)
        with self._parsing():
            vectors = {int(row["index"]): b64decode(row["embedding"]) for row in answer["data"]}
            return [vectors[index] for index in range(len(texts))]

    async def rerank(self, query: str, documents: Sequence[str], model: str) -> list[float]:
        """Return how well each document answers `query` by a reranker: higher is better. Loads it where needed. Raises
        RequestError for another model."""
        answer = await self.call("POST", "/v1/rerank", {"model": model, "query": query, "documents": list(documents)})
        with self._parsing():
            scores = {int(rank["index"]): float(rank["relevance_score"]) for rank in answer["results"]}
            return [scores[index] for index in range(len(documents))]

    async def transcribe(
        self, path: Path, model: str = "", fields: Mapping[str, str] | None = None, *, translates: bool = False
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Yield what a model hears in the sound at `path`, as it is recognised: pieces of the text, segments and, last,
        one Transcribed. `fields` are more of OpenAI's (language, prompt); an empty `model` is one that hears. Closing
        the iterator ends it. Raises UsageError for a file that cannot be read, RequestError for one without a sound."""
        task = "translations" if translates else "transcriptions"
        form = {"model": model, "response_format": "verbose_json", "stream": "true", **(fields or {})}
        async with aclosing(self.events("POST", f"/v1/audio/{task}", Upload(path, form))) as events:
            async for event in events:
                with self._parsing():
                    found = _transcript_event(event)
                if found is not None:
                    yield found

    async def speak(
        self, text: str, model: str = "", voice: str = "", fields: Mapping[str, object] | None = None
    ) -> AsyncGenerator[Said, None]:
        """Yield the sentences of `text` as a model says them, in a `voice` of the service's folder or of a data: URL.
        `fields` are more of the route's (language, seed); an empty `model` is one that speaks. Closing the iterator
        ends it. Raises RequestError for what cannot be said."""
        body = {"input": text, "model": model, "voice": voice, "response_format": "pcm", "stream_format": "sse"}
        async with aclosing(self.events("POST", "/v1/audio/speech", {**body, **(fields or {})})) as events:
            async for event in events:
                if event.get("type") != "speech.audio.delta":
                    continue
                with self._parsing():
                    said = Said(
                        samples=b64decode(event["audio"]),
                        sample_rate=int(event["sample_rate"]),
                        text=str(event["text"]),
                        is_cut=bool(event["is_cut"]),
                    )
                yield said

    async def end_thought(self, response_id: str) -> None:
        """End the reasoning of a running answer, named by its deltas, so that its text begins. Raises RequestError for
        an answer that has ended."""
        await self.call("POST", f"{_ROOT}/requests/{quote(response_id, safe='')}/end-thought", {})

    async def forget_prefixes(self, prompt_cache_keys: Sequence[str]) -> None:
        """Remove what the service has cached and saved of conversations, which requests named by these keys."""
        await self.call("POST", f"{_ROOT}/forget-prefixes", {"prompt_cache_keys": list(prompt_cache_keys)})

    async def keep_draft_texts(
        self, draft_corpus: str, texts: Sequence[str], prompt_cache_key: str | None = None
    ) -> None:
        """Let the service keep texts in which it looks up drafts of requests with that `draft_corpus`, until they are
        removed with the conversation of that key."""
        body = {"draft_corpus": draft_corpus, "texts": list(texts), "prompt_cache_key": prompt_cache_key}
        await self.call("POST", f"{_ROOT}/draft-texts", body)

    async def check_schema(self, schema: object) -> None:
        """Raise RequestError, with the reason, for a JSON schema that answers cannot follow."""
        await self.call("POST", f"{_ROOT}/schema", {"schema": schema})

    async def plan(self, request: PlanRequest) -> PlanReport:
        """Return the plan for `request`. Raises the errors of an unavailable model, UsageError for invalid settings."""
        return decode(PlanReport, await self.call("POST", f"{_ROOT}/plan", request))

    async def reload(self, request: PlanRequest) -> str:
        """Start to reload the model with the settings of `request`, and return its id without waiting. Running answers
        fail. Raises as `plan`, and UsageError for a request for another machine."""
        return str((await self.call("POST", f"{_ROOT}/reload", request))["id"])

    async def lengthen_context(self, model: str, n_ctx: int) -> ContextLength:
        """Load `model` with a context of `n_ctx` tokens, or as many of them as training and memory allow, and return
        what it has once it is loaded. A context that the user chose stays."""
        return decode(ContextLength, await self.call("POST", f"{_ROOT}/context", {"model": model, "n_ctx": n_ctx}))

    async def evictions(self, model: str, n_ctx: int = 0) -> Evictions:
        """Return which models would be unloaded to load `model` with a context of `n_ctx` tokens, 0 for the usual one.
        Loads and unloads nothing. Raises the errors of an unavailable model."""
        return decode(Evictions, await self.call("POST", f"{_ROOT}/evictions", {"model": model, "n_ctx": n_ctx}))

    async def takes_tools(self, model: str) -> bool | None:
        """Return whether the chat template of `model` has tools, None for a model without one; loads a model that was
        not loaded before."""
        props = await self.call("GET", f"/props?{urlencode({'model': model})}")
        return bool(props["chat_template_caps"]["supports_tools"]) if props["chat_template"] else None

    async def metered_key(self) -> AsyncGenerator[MeteredKey, None]:
        """Yield a key that may ask models until this is closed, and whose requests are counted; end with the service,
        by a ServiceError where it died."""
        async with aclosing(self.events("POST", f"{_ROOT}/metered-keys")) as events:
            async for data in events:
                yield decode(MeteredKey, data)

    async def metered_usage(self, key_id: str) -> MeteredUsage:
        """Return what the requests with a metered key used so far. Raises RequestError for one that has ended."""
        return decode(MeteredUsage, await self.call("GET", f"{_ROOT}/metered-keys/{key_id}"))

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that run, wait or ended, oldest first."""
        return tuple(decode(Job, item) for item in (await self.call("GET", _JOBS))["jobs"])

    async def job(self, job_id: str) -> Job:
        """Return one job. Raises RequestError for an unknown id."""
        return decode(Job, await self.call("GET", f"{_JOBS}/{job_id}"))

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Queue a job. Raises RequestError for invalid arguments."""
        return decode(Job, await self.call("POST", _JOBS, {"kind": kind, "arguments": dict(arguments)}))

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job, oldest first, then each as it changes, without end; a deleted one as "forgotten"."""
        async with aclosing(self.events("GET", f"{_JOBS}/events")) as events:
            async for data in events:
                yield decode(Job, data)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job, now and as it changes, until it has ended."""
        async with aclosing(self.events("GET", f"{_JOBS}/{job_id}/events")) as events:
            async for data in events:
                yield decode(Job, data)

    async def job_log(self, job_id: str) -> str:
        """Return the last part of a job's log, not yet safe for a terminal."""
        return str((await self.call("GET", f"{_JOBS}/{job_id}/log"))["log"])

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a waiting job, or interrupt a running one without waiting for its end: a partial download is kept, a
        partial conversion is deleted."""
        return decode(Job, await self.call("POST", f"{_JOBS}/{job_id}/cancel"))

    async def retry_job(self, job_id: str) -> Job:
        """Queue an ended job again, under the same id. Raises RequestError for one that has not ended."""
        return decode(Job, await self.call("POST", f"{_JOBS}/{job_id}/retry"))

    async def forget_job(self, job_id: str) -> None:
        """Delete an ended job, with its log. Raises RequestError for one that has not ended."""
        await self.call("DELETE", f"{_JOBS}/{job_id}")

    async def attend(self) -> AsyncGenerator[None, None]:
        """Keep the service running until this is closed, though its owner ends; yield once that is certain. Ends with
        the service, by a ServiceError where it died."""
        async with aclosing(self.events("GET", f"{_ROOT}/attend")) as events:
            async for _ in events:
                yield

    async def stay_until_jobs_end(self) -> None:
        """Keep the service running until its last job has ended and no client watches."""
        await self.call("POST", f"{_ROOT}/stay", {"until": "jobs-end"})
        self.is_staying = True


def _transcript_event(event: dict[str, Any]) -> TranscriptEvent | None:
    """Return what an event of a transcript says, None for one of another type. Raises KeyError, TypeError or ValueError
    for anything else."""
    kind = event["type"]
    if kind == "transcript.text.delta":
        return stated_text(event["delta"], "delta")
    text = stated_text(event.get("text"), "text")
    length_s = stated_number(event, "duration")
    if kind == "transcript.text.segment":
        begin_s, end_s = stated_number(event, "start"), stated_number(event, "end")
        return Segment(int(event["id"]), begin_s, end_s, length_s, text)
    if kind != "transcript.text.done":
        return None
    usage = event["usage"]
    return Transcribed(
        text,
        stated_text(event.get("language"), "language"),
        length_s,
        int(stated_number(usage, "input_tokens")),
        int(stated_number(usage, "output_tokens")),
        tuple(stated_text(warning, "warning") for warning in event.get("warnings") or ()),
    )
