"""Connections to the service and to engines of others: HTTP, server-sent events, errors, and OpenAI's wire format."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import anyio

from app.client.httpx_alone import httpx
from app.client.own_service import NotOursError
from app.common.outbound import no_tls, tls_context
from app.protocol.chat import Completed, GenerationOptions, Message, PromptProgress, ThreadUse, ToolCallDelta
from app.protocol.codec import decode_checked, encode
from app.protocol.errors import ForeignServiceError, ServiceError
from quantizer.system.errors import ErrorInfo, UsageError, UserError
from quantizer.system.files import explained, open_regular

_T = TypeVar("_T")
MAX_QUOTED = 300  # characters of a server's text, in an error
_LARGEST = 1e15  # of a number in an answer: neither a count nor a time is larger, and JSON has 1e999
_START_AGAIN = "Start it with `localllm serve`, or start localllm again."
_SOUND_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}  # subtypes that OpenAI's API calls otherwise


@dataclass(frozen=True, slots=True)
class Upload:
    """The body of a request as a form: the file at `path`, which is read while it is sent, with `fields` beside it."""

    path: Path
    fields: Mapping[str, str]


class HttpConnection(ABC):
    """An open connection to the server at `base_url`, as an async context manager; `options` are httpx's. Every method
    raises ServiceError where the server cannot be reached, this connection was closed, or the answer is invalid, and
    the error of a refusal. A subclass words them. `notices` are sentences for the user about how it was found;
    `kept_for` is how long a service that this process started stays for the next one, such as "10m". Raises
    UsageError for an https address where the environment names certificates that cannot be read."""

    _requires_done: ClassVar = False  # not every server sends [DONE] after its events

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None, **options: Any) -> None:
        self.base_url = base_url
        self.notices: tuple[str, ...] = ()
        self.kept_for = ""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if "verify" not in options and transport is None:
            options["verify"] = tls_context() if base_url.startswith("https:") else no_tls()
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, transport=transport, **options)
        self._running: dict[asyncio.Task[Any], anyio.CancelScope] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._is_closed = True
        # A socket that is being opened when httpx closes is opened all the same, and nobody would close it.
        for scope in self._running.values():
            scope.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._http.aclose()

    async def _alone(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Return the result of `work` on a socket; None if this connection was closed before its end. A caller that is
        cancelled waits until `work` has ended too.

        It runs in a task that is cancelled by anyio only. httpcore shields its closing of sockets, those of other
        requests as well, from anyio's cancellation but not from `Task.cancel`, by which they would stay open."""
        scope = anyio.CancelScope()

        async def run() -> _T | None:
            with scope:
                return await work
            return None

        running = asyncio.create_task(run())
        self._running[running] = scope
        running.add_done_callback(self._running.pop)
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            scope.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        return running.result()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the response."""
        with self._reachable():
            async with self._response(method, path, body) as response:
                await self._alone(response.aread())
        if not response.is_success:
            raise self._refusal(path, response.status_code, response.content)
        with self._parsing():
            return received(response.content)

    async def answer(self, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Return the status and the JSON of a POST, a refusal's as well; None for what is not JSON."""
        with self._reachable():
            async with self._response("POST", path, body, headers) as response:
                await self._alone(response.aread())
        try:
            return response.status_code, received(response.content)
        except (ValueError, RecursionError):
            return response.status_code, None

    async def events(self, method: str, path: str, body: object = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the data of server-sent events until they end. Raises ServiceError without a required `[DONE]`."""
        is_done = False
        with self._reachable():
            async with self._response(method, path, body) as response:
                if not response.is_success:
                    raise self._refusal(path, response.status_code, await self._alone(response.aread()) or b"")
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    if line[5:].strip() == "[DONE]":
                        is_done = True
                        continue
                    with self._parsing():
                        event = self._event(line[5:])
                    yield event
        if self._requires_done and not is_done:
            raise ServiceError("The service ended the answer before it was complete.", _START_AGAIN)

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, and close its response at the end. Raises UsageError for an upload that cannot be read."""
        closed = self._unreachable(RuntimeError("This connection was closed."))
        if self._is_closed:
            raise closed
        opened: list[httpx.Response] = []
        with _content_of(body) as content:
            try:
                request = self._http.build_request(method, path, headers=headers, **content)
            except UnicodeEncodeError as error:  # what a name that is not UTF-8 becomes in Python
                text = repr(error.object[max(0, error.start - 20) : error.end + 20])
                cause = f"The request holds text that is not UTF-8: … {text} …"
                raise UsageError(cause, "Write it in UTF-8; `localllm ls` lists the names of models.") from error

            async def send() -> None:
                opened.append(await self._http.send(request, stream=True))

            try:
                await self._alone(send())
                if not opened:
                    raise closed
                yield opened[0]
            finally:
                for response in opened:
                    await self._alone(response.aclose())

    def _event(self, data: str) -> Any:
        """Return the value of an event's JSON. Raises the error that it reports."""
        return received(data)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (httpx.TransportError, httpx.InvalidURL, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._is_closed:  # closed by its owner
                raise
            raise self._unreachable(error) from error

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._invalid(str(error)[:MAX_QUOTED]) from error

    @abstractmethod
    def _unreachable(self, error: Exception) -> ServiceError:
        """Return the error for a server that does not answer."""

    @abstractmethod
    def _invalid(self, reason: str) -> ServiceError:
        """Return the error for an answer that is not of the expected form."""

    @abstractmethod
    def _refusal(self, path: str, status: int, body: bytes) -> UserError:
        """Return the error that a status other than success means."""


@contextmanager
def _content_of(body: object) -> Iterator[dict[str, Any]]:
    """Give a body as httpx takes it; the file of an upload is open meanwhile."""
    if not isinstance(body, Upload):
        yield {"json": encode(body)}
        return
    with explained(f"{body.path} cannot be read", "Check the path.", UsageError):
        file = open_regular(body.path)
    with file:
        yield {"data": body.fields, "files": {"file": ("file", file)}}  # its own name may not be UTF-8


class Connection(HttpConnection):
    """An open connection to the service."""

    _requires_done = True

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None) -> None:
        # The service is on this machine: no proxy, and no limit on how long an answer takes.
        super().__init__(base_url, api_key, transport, timeout=httpx.Timeout(None, connect=5.0), trust_env=False)

    def _unreachable(self, error: Exception) -> ServiceError:
        if isinstance(error.__cause__, NotOursError):
            who = "The localllm of another user or data folder" if error.__cause__.is_localllm else "Another program"
            return ForeignServiceError(
                f"{who} listens at {self.base_url}.", "Start your own: `localllm serve --port …`."
            )
        return ServiceError(f"No localllm service answers at {self.base_url}.", _START_AGAIN)

    def _invalid(self, reason: str) -> ServiceError:  # noqa: ARG002
        return ServiceError("Another program than localllm listens on the service's port.", "Use another --port.")

    def _refusal(self, path: str, status: int, body: bytes) -> UserError:  # noqa: ARG002 - the body says it
        with self._parsing():
            return error_of(received(body)["error"])

    def _event(self, data: str) -> Any:
        event = super()._event(data)
        if event.keys() == {"error"}:
            raise error_of(event["error"])
        return event


def received(text: str | bytes) -> Any:
    """Return the value of JSON that a server sent, with `?` for halves of surrogate pairs: Python's JSON reads them
    from escapes (`\\ud800`), and no file, terminal or request may hold them. Raises ValueError and RecursionError."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    value = json.loads(text)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def error_of(data: dict[str, Any]) -> UserError:
    """Return the error of an OpenAI error object with our `kind`, `cause`, `remedy`, `details`."""
    cause = data.get("cause") or data.get("message") or "The service failed."
    remedy, details = str(data.get("remedy") or ""), data.get("details") or {}
    return ErrorInfo(str(data.get("kind", "ServiceError")), str(cause), remedy, details).error()


def error_message(body: bytes) -> str:
    """Return the message of an error in OpenAI's or Ollama's form; another text unchanged. Long ones are cut."""
    text = body.decode("utf-8", "replace")
    try:
        error = received(text)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        error = text
    return str(error.get("message", error) if isinstance(error, dict) else error).strip()[:MAX_QUOTED]


def chat_body(messages: Sequence[Message], model: str, options: GenerationOptions | None) -> dict[str, Any]:
    """Return the body of a streamed chat, with the options that are set. Media, and texts that have parts, are OpenAI's
    content parts."""
    tools = [{"type": "function", "function": encode(tool)} for tool in options.tools] if options else []
    body = {"model": model, "messages": [_chat_message(message) for message in messages], **_streamed(options)}
    return {**body, "tools": tools} if tools else body


def _chat_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", "tool_call_id": message.call_id, **named, "content": _content(message)}
    if message.calls:
        thought = {"reasoning_content": message.reasoning} if message.reasoning else {}
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
        return {"role": message.role, "content": message.content or None, **thought, "tool_calls": calls}
    return {"role": message.role, "content": _content(message)}


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not (message.media or message.part_ends):
        return message.content
    parts: list[dict[str, Any]] = []
    for part in message.media:
        if part.is_sound:
            subtype = part.mime_type.removeprefix("audio/")
            sound = {"data": part.base64, "format": _SOUND_FORMATS.get(subtype, subtype)}
            parts.append({"type": "input_audio", "input_audio": sound})
        else:
            url = f"data:{part.mime_type};base64,{part.base64}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    places = pairwise((0, *message.part_ends, len(message.content)))
    return parts + [{"type": "text", "text": message.content[begin:end]} for begin, end in places if begin < end]


def completion_body(prompt: str, model: str, options: GenerationOptions | None) -> dict[str, Any]:
    """Return the body of a streamed completion of `prompt`, which has neither thought nor tools, with the options that
    are set."""
    return {"model": model, "prompt": prompt, **_streamed(options and replace(options, think=None))}


def _streamed(options: GenerationOptions | None) -> dict[str, Any]:
    chosen = {name: value for name, value in asdict(options or GenerationOptions()).items() if value is not None}
    samplers, schema, _ = chosen.pop("samplers"), chosen.pop("json_schema", None), chosen.pop("tools")
    if schema is not None:
        chosen["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    thinking = _thinking(chosen.pop("think", None))
    return {"stream": True, "stream_options": {"include_usage": True}, **samplers, **thinking, **chosen}


def _thinking(level: str | None) -> dict[str, Any]:
    """Return the fields of a level: OpenAI's effort, or llama-server's and vLLM's number of tokens."""
    if level is None:
        return {}
    if level.isdecimal():
        return {"reasoning_budget_tokens": int(level), "thinking_token_budget": int(level)}
    return {"reasoning_effort": "none" if level == "off" else level}


class CallReader:
    """The calls of one streamed answer, numbered from 0 in the order in which they begin, each with an id of its own.
    Engines differ: some leave out the index, give all calls the same one, send no id, or repeat the name with each
    piece."""

    def __init__(self) -> None:
        self._index_of: dict[object, int] = {}  # by the engine's index
        self._ids: list[str] = []  # as the engine gave them
        self._used_ids: set[str] = set()

    def read(self, pieces: Sequence[Mapping[str, Any]] | None) -> tuple[ToolCallDelta, ...]:
        """Return the pieces of a delta's `tool_calls`. Raises AttributeError or TypeError for another form."""
        return tuple(self._read(piece) for piece in pieces or ())

    def _read(self, piece: Mapping[str, Any]) -> ToolCallDelta:
        function = piece.get("function") or {}
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        given = piece.get("index")
        index = self._index_of.get(given, -1) if given is not None else len(self._ids) - 1
        is_new = index < 0 or (bool(name) and call_id != self._ids[index] and bool(call_id or given is None))
        if is_new:
            index = len(self._ids)
            self._ids.append(call_id)
        self._index_of[given] = index
        arguments = function.get("arguments")
        if not isinstance(arguments, str):  # a few engines send an object
            arguments = "" if arguments is None else json.dumps(arguments)
        if not is_new:
            return ToolCallDelta(index, arguments=arguments)
        # An id that is missing or came before gives way to one of nine characters, as Mistral's templates want them.
        unique = call_id if call_id and call_id not in self._used_ids else f"call{index:05d}"
        self._used_ids.add(unique)
        return ToolCallDelta(index, unique, name, arguments)


def stated_number(values: Mapping[str, Any], name: str, default: float = 0.0, *, least: float = 0.0) -> float:
    """Return the number `name` of another program's JSON, `default` where it says none. Raises ValueError for anything
    else, and one below `least`: it is counted with, and stored."""
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _LARGEST:
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def stated_text(value: object, name: str) -> str:
    """Return a text of another program's JSON, "" where it says none. Raises TypeError for anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    raise TypeError(f"{name} is not a text")


def progress_of(data: Mapping[str, Any]) -> PromptProgress:
    """Return the progress of a prompt from llama-server's `prompt_progress`, with what localllm says besides. Raises
    ValueError, TypeError, KeyError or AttributeError for anything else."""
    machine = data.get("machine")
    return PromptProgress(
        n_tokens=int(stated_number(data, "total")),
        n_cached=int(stated_number(data, "cache")),
        n_read=int(stated_number(data, "processed")),
        elapsed_s=stated_number(data, "time_ms") / 1000,
        left_s=None if data.get("left_ms") is None else stated_number(data, "left_ms") / 1000,
        n_ahead=int(stated_number(data, "n_ahead")),
        machine=None if machine is None else decode_checked(ThreadUse, machine),
    )


def completed_of(reason: str, usage: Mapping[str, Any], timings: Mapping[str, Any]) -> Completed:
    """Return the end of an answer from the last of OpenAI's `usage` and llama.cpp's `timings`. Raises as
    `progress_of`."""
    details = usage.get("prompt_tokens_details") or {}
    return Completed(
        finish_reason=reason,
        n_prompt_tokens=int(stated_number(usage, "prompt_tokens")),
        n_cached_tokens=int(stated_number(details, "cached_tokens")),
        n_output_tokens=int(stated_number(usage, "completion_tokens")),
        time_to_first_token_s=stated_number(timings, "time_to_first_token_ms") / 1000,
        prefill_tokens_per_s=stated_number(timings, "prompt_per_second"),
        decode_tokens_per_s=stated_number(timings, "predicted_per_second"),
        n_drafted_tokens=int(stated_number(timings, "draft_n")),
        n_accepted_tokens=int(stated_number(timings, "draft_n_accepted")),
        tokens_per_pass=stated_number(timings, "tokens_per_pass", 1.0),
        saved_s=stated_number(timings, "draft_saved_ms", least=-_LARGEST) / 1000,  # drafts may cost more than they save
        n_cut_reasoning_tokens=int(stated_number(timings, "reasoning_cut_n")),
    )
