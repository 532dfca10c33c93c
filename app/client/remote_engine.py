"""Any OpenAI-compatible engine behind the same chat: vLLM, SGLang, llama-server, a service on the internet.

Owns the requests to such an engine, and measuring the times that it does not report. Independent of localllm's own
routes: a remote engine has no plans, jobs and library.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from app.client.connection import (
    MAX_QUOTED,
    CallReader,
    HttpConnection,
    chat_body,
    completed_of,
    completion_body,
    error_message,
    progress_of,
    stated_number,
    stated_text,
)
from app.client.httpx_alone import httpx
from app.common.answer_text import ANY_FAMILY, ReasonedText, ReasoningParser
from app.common.outbound import client_options
from app.common.prompt_pace import PromptPace
from app.protocol.chat import (
    AnswerDelta,
    AnswerEvent,
    Completed,
    GenerationOptions,
    MediaPart,
    Message,
    PromptProgress,
    Tool,
    ToolCallDelta,
)
from app.protocol.errors import RequestError, ServiceError
from app.protocol.status import ModelStatus, ServiceStatus
from quantizer.system.errors import EngineError, UserError

_NEEDS_KEY = "Give its key with --api-key, or in LOCALLLM_API_KEY."
_REMEDIES = {401: _NEEDS_KEY, 403: _NEEDS_KEY, 429: "Try again later."}
_LEAST_SPAN_S = 0.05  # pieces that come in one burst of the network say nothing about the engine's speed
# Owners of models whose servers tell the progress of a prompt, if asked, and end a thought.
_LLAMACPP = ("llamacpp", "localllm")
# What stands before pictures and sounds of results, which most engines take from the user alone.
_FROM_RESULTS = "Pictures and sounds of the results above:"
_CONTEXT_FIELDS = ("max_model_len", "context_length", "max_context_length")  # vLLM's; OpenRouter's; LM Studio's


def parse_address(text: str) -> str | None:
    """Return the URL `text` without /v1, None where it is not a URL."""
    return text.rstrip("/").removesuffix("/v1") if text.startswith(("http://", "https://")) else None


class RemoteEngine(HttpConnection):
    """An open connection to the engine at `base_url`; fulfils what a chat needs of `ServiceClient`. Every method raises
    ServiceError when the engine cannot be reached or is none, EngineError when it fails, and RequestError for what it
    refuses."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        options = client_options(httpx.AsyncHTTPTransport, base_url) if transport is None else {}
        super().__init__(base_url, api_key, transport, timeout=httpx.Timeout(None, connect=10.0), **options)
        self._clock = clock
        self._is_llamacpp = False  # or localllm: what others do not know, they may refuse
        self._models: tuple[ModelStatus, ...] = ()

    async def status(self) -> ServiceStatus:
        """Return the engine's models, each as ready: such an engine reports no progress."""
        listed = await self.call("GET", "/v1/models")
        with self._parsing():
            models = tuple(_model(item, listed) for item in listed["data"] if isinstance(item["id"], str))
            self._is_llamacpp = any(item.get("owned_by") in _LLAMACPP for item in listed["data"])
        if not models:
            raise ServiceError(f"The engine at {self.base_url} has no model.", "Give it one.")
        self._models = models
        return ServiceStatus(version="", default_model=models[0].id, models=models)

    async def load(self, model: str, when_unfit: str = "") -> str:  # noqa: ARG002 - the engine decides
        """Return the engine's id of `model`; empty is its first. Raises RequestError for an unknown model."""
        status = await self.status()
        if status.model(model) is None and model:
            available = ", ".join(other.id for other in status.models)
            raise RequestError(f"The engine at {self.base_url} has no model {model}.", f"It has: {available}.")
        return model or status.default_model

    async def count_tokens(self, text: str, model: str = "") -> int:  # noqa: ARG002
        """Raise RequestError: OpenAI's API has no way to count tokens without an answer."""
        raise RequestError(f"The engine at {self.base_url} does not count tokens.", "It reports them with an answer.")

    async def count_media_tokens(self, media: Sequence[MediaPart], model: str = "") -> int:  # noqa: ARG002
        return await self.count_tokens("")

    async def count_tool_tokens(self, tools: Sequence[Tool], model: str = "") -> int:  # noqa: ARG002
        return await self.count_tokens("")

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the answer as it is made and, last, one Completed. Closing the iterator stops the answer. Tokens are
        counted as pieces until the engine reports its own count; times are measured here unless it reports them as
        llama.cpp does. Reasoning in tags at the beginning of the answer is separated. Pictures and sounds of results go
        to a model of which the engine says that it reads them: nobody chose to send them, and another would refuse each
        later question."""
        known = next((each for each in self._models if each.id == model), None)
        sent = _with_result_media(messages, known, are_in_results=self._is_llamacpp)
        whole = [replace(message, part_ends=()) for message in sent]  # vLLM puts a line end between parts of text
        body = chat_body(whole, model, _without_key(options))
        if body.get("continue_final_message"):
            body["add_generation_prompt"] = False  # vLLM takes either
        return self._streamed("/v1/chat/completions", body)

    async def read_ahead(
        self,
        messages: Sequence[Message],  # noqa: ARG002
        model: str = "",  # noqa: ARG002
        options: GenerationOptions | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[PromptProgress, None]:
        """Send nothing: whose machine that is, and what reading costs there, is not known."""
        return
        yield PromptProgress()

    def complete(
        self, prompt: str, model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        return self._streamed("/v1/completions", completion_body(prompt, model, _without_key(options)))

    async def check_schema(self, schema: object) -> None:
        """Accept every schema: the engine checks it with the question."""

    async def keep_draft_texts(
        self, draft_corpus: str, texts: Sequence[str], prompt_cache_key: str | None = None
    ) -> None:
        """Do nothing: no other engine looks up drafts in texts of earlier chats."""

    async def end_thought(self, response_id: str) -> None:
        """End the reasoning of a running answer as llama-server does. Raises RequestError where the engine cannot."""
        body = {"id": response_id, "action": "reasoning_end"}
        ended = await self.call("POST", "/v1/chat/completions/control", body)
        with self._parsing():
            is_ended, reason = bool(ended["success"]), str(ended.get("message", ""))[:MAX_QUOTED]
        if not is_ended:
            raise RequestError(f"The engine at {self.base_url} does not end the thought: {reason}.", "Stop the answer.")

    async def _streamed(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[AnswerEvent, None]:
        reply = _Reply(self._clock, ends_thoughts=self._is_llamacpp)
        asked = {"return_progress": True} if self._is_llamacpp else {}
        async with aclosing(self.events("POST", path, {**asked, **body})) as events:
            async for event in events:
                with self._parsing():
                    delta = reply.add(event)
                if delta:
                    yield delta
        if rest := reply.rest():
            yield rest
        with self._parsing():
            completed = reply.completed()
        yield completed

    def _unreachable(self, error: Exception) -> ServiceError:
        if isinstance(error, httpx.InvalidURL):
            return ServiceError(f"{self.base_url} is not an address: {error}.", "Give one such as http://host:8000.")
        cause = f"No engine answers at {self.base_url}: {str(error) or type(error).__name__}."
        return ServiceError(cause, "Check the address, and that it runs.")

    def _invalid(self, reason: str) -> ServiceError:
        cause = f"The engine at {self.base_url} sends an invalid response: {reason}."
        return ServiceError(cause, "Give the address of an OpenAI-compatible engine.")

    def _refusal(self, path: str, status: int, body: bytes) -> UserError:  # noqa: ARG002 - the status says enough
        cause = f"The engine at {self.base_url} responds {status}: {error_message(body)}"
        if status >= 500:
            return EngineError(cause, "Try again, or see its log.")
        return RequestError(cause, _REMEDIES.get(status, "Change the request, or the engine's settings."))


class _Reply:
    """One answer while it streams, timed by the clock of this machine. It has an id where the engine `ends_thoughts` by
    that."""

    def __init__(self, clock: Callable[[], float], *, ends_thoughts: bool = False) -> None:
        self._ends_thoughts = ends_thoughts
        self.n_pieces = 0
        self._clock = clock
        self._sent_s = clock()
        self._first_s: float | None = None
        self._last_s = self._sent_s
        self._reason = "stop"
        self._parser = ReasoningParser(*ANY_FAMILY)
        self._calls = CallReader()
        self._response_id = ""
        self._pace: PromptPace | None = None
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    def add(self, event: Mapping[str, Any]) -> AnswerDelta | PromptProgress | None:
        """Add an event and return what is new, None for nothing. Raises EngineError for an error in mid-answer."""
        if event.get("error"):
            raise EngineError(f"The engine failed: {error_message(json.dumps(event).encode())}", "Ask again.")
        if event.get("prompt_progress"):
            return self._progress(progress_of(event["prompt_progress"]))
        text, reasoning = "", ""
        pieces: list[Mapping[str, Any]] = []
        if self._ends_thoughts:
            self._response_id = str(event.get("id") or self._response_id)
        for choice in event.get("choices") or ():
            self._reason = stated_text(choice.get("finish_reason"), "finish_reason") or self._reason
            delta = choice.get("delta") or {}
            text += stated_text(delta.get("content") or choice.get("text"), "content")
            reasoning += stated_text(delta.get("reasoning_content") or delta.get("reasoning"), "reasoning_content")
            pieces += delta.get("tool_calls") or ()
        self._usage = event.get("usage") or self._usage
        self._timings = event.get("timings") or self._timings
        if not text and not reasoning and not pieces:
            return None
        self.n_pieces += 1
        self._last_s = self._clock()
        self._first_s = self._last_s if self._first_s is None else self._first_s
        parsed = self._parser.push(text)
        return self._delta(ReasonedText(parsed.text, reasoning + parsed.reasoning), self._calls.read(pieces))

    def _progress(self, progress: PromptProgress) -> PromptProgress:
        """Return `progress` with the time left, which llama-server leaves to us."""
        if progress.left_s is not None or not progress.n_tokens:
            return progress
        now_s = self._clock()
        if self._pace is None:
            self._pace = PromptPace(progress.n_tokens, progress.n_cached, now_s - progress.elapsed_s)
        self._pace.observe(progress.n_read, now_s)
        return replace(progress, left_s=self._pace.left_s(now_s))

    def rest(self) -> AnswerDelta | None:
        """Return what was held back as a possible tag, if any, at the end of the answer."""
        return self._delta(self._parser.finish())

    def _delta(self, parsed: ReasonedText, calls: tuple[ToolCallDelta, ...] = ()) -> AnswerDelta | None:
        if parsed == ReasonedText() and not calls:
            return None
        return AnswerDelta(parsed.text, self.n_pieces, parsed.reasoning, calls, self._response_id)

    def completed(self) -> Completed:
        n_output = int(stated_number(self._usage, "completion_tokens", self.n_pieces))
        first_s = self._last_s if self._first_s is None else self._first_s
        span_s = self._last_s - first_s
        measured = {
            "time_to_first_token_ms": 1000 * (first_s - self._sent_s),
            "predicted_per_second": max(n_output - 1, 0) / span_s if span_s >= _LEAST_SPAN_S else 0.0,
        }
        reported = {name: value for name, value in self._timings.items() if value is not None}
        return completed_of(self._reason, {**self._usage, "completion_tokens": n_output}, {**measured, **reported})


def _with_result_media(
    messages: Sequence[Message], model: ModelStatus | None, *, are_in_results: bool
) -> list[Message]:
    """Return `messages` with the pictures and sounds of results that `model` reads: where they are, or in a turn of the
    user that follows the results."""
    reads = {False: model is not None and model.sees, True: model is not None and model.hears}  # by whether it sounds
    sent: list[Message] = []
    waiting: list[MediaPart] = []
    for message in messages:
        if message.role == "tool":
            media = tuple(part for part in message.media if reads[part.is_sound])
            waiting += () if are_in_results else media
            message = replace(message, media=media if are_in_results else ())
        elif waiting:
            sent.append(Message("user", _FROM_RESULTS, tuple(waiting)))
            waiting = []
        sent.append(message)
    return [*sent, Message("user", _FROM_RESULTS, tuple(waiting))] if waiting else sent


def _model(item: Mapping[str, Any], listed: Mapping[str, Any]) -> ModelStatus:
    """Return a model of those `listed`: what it reads as localllm and OpenRouter say it, or llama-server."""
    sees = hears = None
    match item, listed:
        case {"architecture": {"input_modalities": [*modalities]}}, _:
            sees, hears = "image" in modalities, "audio" in modalities
        case _, {"models": [{"name": name, "capabilities": [*capabilities]}]} if name == item["id"]:
            sees = "multimodal" in capabilities  # most of these see; which hear it does not say
            hears = None if sees else False
    lengths = [item.get(name) for name in _CONTEXT_FIELDS] + [(item.get("meta") or {}).get("n_ctx")]
    n_ctx = next((value for value in lengths if type(value) is int and value >= 0), 0)
    return ModelStatus(
        id=item["id"],
        state="ready",
        progress=1.0,
        n_ctx=n_ctx,
        notices=(),
        error=None,
        sees=sees,
        hears=hears,
    )


def _without_key(options: GenerationOptions | None) -> GenerationOptions | None:
    """Return the options without those that name a conversation or its texts: not every engine takes them, and none
    needs them."""
    return options and replace(options, prompt_cache_key=None, prompt_cache_retention=None, draft_corpus=None)
