"""HTTP connections: requests, server-sent events, errors; the one to the service, and what clients of others share.

Owns HTTP. Independent of what is requested.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, ClassVar, Self

import httpx

from app.protocol.chat import GenerationOptions, MediaPart, Message
from app.protocol.codec import encode
from app.protocol.errors import ServiceError
from app.protocol.tools import ToolCall
from quantizer.system.errors import ErrorInfo, UserError

MAX_QUOTED = 300  # characters of a server's text, in an error
_SOUND_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}  # subtypes that OpenAI's API calls otherwise
_START_AGAIN = "Start it with `localllm serve`, or start localllm again."


class HttpConnection(ABC):
    """An open connection to the server at `base_url`, as an async context manager; `options` are httpx's.

    Every method raises ServiceError where the server cannot be reached, this connection was closed, or the answer is
    invalid, and the error of a refusal. A subclass words them.
    """

    _requires_done: ClassVar = False  # not every server sends [DONE] after its events

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None, **options: Any) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, transport=transport, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the response."""
        with self._reachable():
            response = await self._http.request(method, path, json=encode(body))
        if not response.is_success:
            raise self._refusal(path, response.status_code, response.content)
        with self._parsing():
            return response.json()

    async def events(self, method: str, path: str, body: object = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the data of server-sent events until they end. Raises ServiceError without a required `[DONE]`."""
        is_done = False
        with self._reachable():
            async with self._http.stream(method, path, json=encode(body)) as response:
                if not response.is_success:
                    raise self._refusal(path, response.status_code, await response.aread())
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

    def _event(self, data: str) -> Any:
        """Return the value of an event's JSON. Raises the error that it reports."""
        return json.loads(data)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (httpx.TransportError, httpx.InvalidURL, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.is_closed:  # closed by its owner
                raise
            raise self._unreachable(error) from error

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
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


class Connection(HttpConnection):
    """An open connection to the service."""

    _requires_done = True

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None) -> None:
        # The service is on this machine: no proxy, and no limit on how long an answer takes.
        transport = transport or httpx.AsyncHTTPTransport()
        super().__init__(base_url, api_key, transport, timeout=httpx.Timeout(None, connect=5.0), trust_env=False)

    def _unreachable(self, error: Exception) -> ServiceError:  # noqa: ARG002 - the remedy is the same for each
        return ServiceError(f"No localllm service answers at {self.base_url}.", _START_AGAIN)

    def _invalid(self, reason: str) -> ServiceError:  # noqa: ARG002
        return ServiceError("Another program than localllm listens on the service's port.", "Use another --port.")

    def _refusal(self, path: str, status: int, body: bytes) -> UserError:  # noqa: ARG002 - the body says it
        with self._parsing():
            return error_of(json.loads(body)["error"])

    def _event(self, data: str) -> Any:
        event = super()._event(data)
        if event.keys() == {"error"}:
            raise error_of(event["error"])
        return event


def chat_body(messages: Sequence[Message], model: str, options: GenerationOptions | None) -> dict[str, Any]:
    """Return the body of a streamed chat, with the options that are set. Media are OpenAI's content parts."""
    tools = [{"type": "function", "function": encode(tool)} for tool in options.tools] if options else []
    body = {"model": model, "messages": [_chat_message(message) for message in messages], **_streamed(options)}
    return {**body, "tools": tools} if tools else body


def _chat_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", "tool_call_id": message.call_id, **named, "content": message.content}
    if message.calls:
        thought = {"reasoning_content": message.reasoning} if message.reasoning else {}
        calls = [_call(call) for call in message.calls]
        return {"role": message.role, "content": message.content or None, **thought, "tool_calls": calls}
    if not message.media:
        return {"role": message.role, "content": message.content}
    parts = [_media_part(part) for part in message.media]
    if message.content:
        parts.append({"type": "text", "text": message.content})
    return {"role": message.role, "content": parts}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _media_part(part: MediaPart) -> dict[str, Any]:
    if part.is_sound:
        subtype = part.mime_type.removeprefix("audio/")
        sound = {"data": part.base64, "format": _SOUND_FORMATS.get(subtype, subtype)}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.base64}"}}


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


def error_of(data: dict[str, Any]) -> UserError:
    """Return the error of an OpenAI error object with our `kind`, `cause`, `remedy`, `details`."""
    cause = data.get("cause") or data.get("message") or "The service failed."
    return ErrorInfo(data.get("kind", "ServiceError"), cause, data.get("remedy", ""), data.get("details", {})).error()


def error_message(body: bytes) -> str:
    """Return the message of an error in OpenAI's or Ollama's form; another text unchanged. Long ones are cut."""
    text = body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
    except (ValueError, LookupError, TypeError):
        error = text
    return str(error.get("message", error) if isinstance(error, dict) else error).strip()[:MAX_QUOTED]
