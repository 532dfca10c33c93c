"""One connection of LM Studio's SDK: calls and channels of one namespace over one websocket.

Owns the frames and their ids, the key in the first message, the form of errors, and that each call ends with a result
or an error. Source: lmstudio-js 2.0.0 (`lms-communication`, `lms-communication-client`,
`serializedLMSExtendedErrorSchema`), lmstudio-python 1.5.0 (`json_api.py`). A client that subscribes to a signal is told
that there is none: `llm`, `embedding` and `system` have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

from pydantic import BaseModel, StrictInt, StrictStr, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.common.keys import KeyScope
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import RequestError
from app.service.api.app_state import AppState, app_state
from app.service.api.fields import Body
from app.service.http.access_log import RequestRecord, record_of
from app.service.http.errors import BUG, RefusedError, openai_error
from app.service.http.field_faults import invalid_fields
from app.service.http.guard import socket_scopes
from app.service.http.routing import parse_object
from app.service.http.streaming import compact_json
from quantizer.system.errors import UserError

FIRST_TIMEOUT_S = 15.0
_POLICY_VIOLATION = 1008  # RFC 6455
_N_SAMPLES = 12
MAX_OPEN = 256  # calls and channels of one connection; the next one is read when one ends
_MAX_TOLD = 256  # warnings of one connection
_HOW_TO_AUTHENTICATE = (
    "Give a key as clientPasskey, or in the form of an API token: `localllm key --json` prints it as lmstudio_token."
)
_KIND = re.compile(r'"type": ?"(rpcCall|channelCreate)"')
_NUMBER = re.compile(r'"(?:callId|channelId)": ?(\d{1,15})')
_ASKS_NOTHING = ("channelAck", "communicationWarning", "signalUnsubscribe", "writableSignalUnsubscribe")
_ERRORS = {"rpcCall": ("rpcError", "callId"), "channelCreate": ("channelError", "channelId")}

Answer: TypeAlias = Callable[["Context", Any], Awaitable[object]]
Stream: TypeAlias = Callable[["Context", Any, "Channel"], Awaitable[None]]


class NoParameter(Body):
    """The parameter of an endpoint that takes none."""


class _Authentication(Body):
    """The first message. Clients make both texts up where they were given no key."""

    authVersion: StrictInt = 1  # noqa: N815
    clientIdentifier: StrictStr = ""  # noqa: N815
    clientPasskey: StrictStr = ""  # noqa: N815

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that may be a key: the passkey alone, or the two as LM Studio's token has them."""
        return (self.clientPasskey, f"sk-lm-{self.clientIdentifier}:{self.clientPasskey}")


class _Frame(Body):
    """A message of a client; which fields it has depends on its type."""

    type: StrictStr
    endpoint: StrictStr = ""
    callId: StrictInt = 0  # noqa: N815
    channelId: StrictInt = 0  # noqa: N815
    subscribeId: StrictInt = 0  # noqa: N815
    ackId: StrictInt | None = None  # noqa: N815
    parameter: Any = None
    creationParameter: Any = None  # noqa: N815
    message: Any = None


async def _no_call(_context: Context, _parameter: Any) -> NoReturn:
    raise RequestError("This endpoint is a channel.", "Create a channel.")


async def _no_channel(_context: Context, _parameter: Any, _channel: Channel) -> NoReturn:
    raise RequestError("This endpoint is not a channel.", "Call it.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One function of a namespace: its parameter, and what answers or streams; `scope` is what a key needs for it."""

    parameter: type[BaseModel]
    answer: Answer = _no_call
    stream: Stream = _no_channel
    scope: KeyScope = KeyScope.INFER


Namespace: TypeAlias = Mapping[str, Endpoint]


@dataclass(frozen=True, slots=True)
class Context:
    """What one call has: the `domain` is its namespace, `record` is of this call; `tell` warns the client."""

    state: AppState
    domain: str
    record: RequestRecord
    tell: Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class Channel:
    """A stream of packets to the client, which may ask to end it: `is_cancelled` is set then."""

    channel_id: int
    _send: Callable[[Mapping[str, Any]], Awaitable[None]]
    is_cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, packet: Mapping[str, Any]) -> None:
        await self._send({"type": "channelSend", "channelId": self.channel_id, "message": packet})


async def serve_namespace(websocket: WebSocket, domain: str, namespace: Namespace) -> None:
    """Answer the calls of one connection until it ends; what still runs then is cancelled."""
    await websocket.accept()
    socket = JsonSocket(websocket)
    try:
        first = await socket.first()
        if first is None:
            return
        scopes = socket_scopes(websocket.scope, *_parsed(_Authentication, first).secrets)
    except UserError as error:
        await socket.send({"success": False, "error": f"{error.cause} {_HOW_TO_AUTHENTICATE}"})
        await socket.close("The first message was refused.")
        return
    await socket.send({"success": True})
    await _Session(socket, app_state(websocket), record_of(websocket.scope), domain, namespace, scopes).run()


class _Session:
    def __init__(
        self,
        socket: JsonSocket,
        state: AppState,
        record: RequestRecord,
        domain: str,
        namespace: Namespace,
        scopes: frozenset[KeyScope],
    ) -> None:
        self._socket = socket
        self._namespace = namespace
        self._scopes = scopes
        self._context = Context(state, domain, record, self._tell)  # its record is that of the connection
        self._told: set[str] = set()
        self._channels: dict[int, Channel] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._by_type: dict[str, Callable[[_Frame], Awaitable[None]]] = {
            "rpcCall": lambda frame: self._begin(self._call(frame)),
            "channelCreate": self._begin_channel,
            "channelSend": self._receive_in_channel,
            "keepAlive": lambda _: self._socket.send({"type": "keepAliveAck"}),
            "signalSubscribe": partial(self._refuse_signal, "signalError"),
            "writableSignalSubscribe": partial(self._refuse_signal, "writableSignalError"),
        }

    async def run(self) -> None:
        try:
            while True:
                try:
                    message = await self._socket.receive()
                    if message is None:
                        return
                    frame = _parsed(_Frame, message)
                    if handle := self._by_type.get(frame.type):
                        await handle(frame)
                    elif frame.type not in _ASKS_NOTHING:
                        await self._warn(f"A message has the type {frame.type[:40]!r}. Send calls and channels.")
                except BadMessageError as error:
                    await self._refuse(error)
                except RequestError as error:
                    await self._warn(str(error))
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running)

    async def _refuse(self, error: BadMessageError) -> None:
        """Answer what cannot be read: the call or channel that it is, as far as that can be seen, would wait."""
        kind, number = _KIND.search(error.text), _NUMBER.search(error.text)
        if kind is None or number is None:
            await self._warn(str(error))
            return
        answer, name = _ERRORS[kind[1]]
        await self._socket.send({"type": answer, name: int(number[1]), "error": sdk_error(error)})

    async def _begin_channel(self, frame: _Frame) -> None:
        if frame.channelId in self._channels:
            raise RequestError(f"The channel {frame.channelId} is open already.", "Number each channel differently.")
        self._channels[frame.channelId] = channel = Channel(frame.channelId, self._socket.send)
        await self._begin(self._stream(frame, channel))

    async def _begin(self, work: Any) -> None:
        while len(self._running) >= MAX_OPEN:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "A call of LM Studio's SDK failed.", "exception": error}
            task.get_loop().call_exception_handler(context)

    async def _call(self, frame: _Frame) -> None:
        async with self._reporting("rpcError", callId=frame.callId):
            endpoint = self._endpoint(frame.endpoint)
            async with self._recorded() as context:
                result = await endpoint.answer(context, _parameter(context, endpoint, frame.parameter))
            # Without a result the field is absent: for the JavaScript SDK null is one, and a wrong one.
            given = {} if result is None else {"result": result}
            await self._socket.send({"type": "rpcResult", "callId": frame.callId, **given})

    async def _stream(self, frame: _Frame, channel: Channel) -> None:
        try:
            async with self._reporting("channelError", channelId=frame.channelId):
                endpoint = self._endpoint(frame.endpoint)
                async with self._recorded() as context:
                    await endpoint.stream(context, _parameter(context, endpoint, frame.creationParameter), channel)
                await self._socket.send({"type": "channelClose", "channelId": frame.channelId})
        finally:
            del self._channels[frame.channelId]

    @asynccontextmanager
    async def _reporting(self, kind: str, **ids: int) -> AsyncIterator[None]:
        """Send an error to the client; raise it again if it is a bug."""
        try:
            yield
        except Exception as error:
            shown = error if isinstance(error, UserError) else BUG
            await self._socket.send({"type": kind, **ids, "error": sdk_error(shown)})
            if not isinstance(error, UserError):
                raise

    @asynccontextmanager
    async def _recorded(self) -> AsyncIterator[Context]:
        """Give what one call has; tell the client the warnings of its model, and count its tokens in the connection."""
        whole = self._context.record
        record = RequestRecord(meter=whole.meter, client=whole.client)
        with record.until_end:
            yield replace(self._context, record=record)
        whole.model_id = record.model_id or whole.model_id
        whole.add(record.n_prompt_tokens, record.n_output_tokens)
        whole.ignored = tuple(dict.fromkeys((*whole.ignored, *record.ignored)))[:_MAX_TOLD]
        for warning in record.warnings:
            await self._tell(warning)

    def _endpoint(self, name: str) -> Endpoint:
        """Return the endpoint called `name`. Raises RequestError for an unknown one, RefusedError without its scope."""
        endpoint = self._namespace.get(name)
        if endpoint is None:
            raise RequestError(f"localllm does not have {self._context.domain}.{name[:80]} of LM Studio.")
        if endpoint.scope not in self._scopes:
            cause = f"This key does not have the scope {endpoint.scope}."
            remedy = f"Create one: `localllm key new NAME --scope {endpoint.scope}`."
            raise RefusedError(403, "insufficient_scope", cause, remedy)
        return endpoint

    async def _receive_in_channel(self, frame: _Frame) -> None:
        """Take what a client sends in a channel: to cancel it. One that has just ended no longer listens."""
        if frame.ackId is not None:
            await self._socket.send({"type": "channelAck", "channelId": frame.channelId, "ackId": frame.ackId})
        channel = self._channels.get(frame.channelId)
        wanted = frame.message.get("type") if isinstance(frame.message, dict) else None
        if channel is not None and wanted in ("cancel", "stop"):
            channel.is_cancelled.set()

    async def _refuse_signal(self, kind: str, frame: _Frame) -> None:
        error = RequestError(f"localllm does not have the signal {frame.endpoint[:80]} of LM Studio.")
        await self._socket.send({"type": kind, "subscribeId": frame.subscribeId, "error": sdk_error(error)})

    async def _tell(self, text: str) -> None:
        """Tell the client once what is ignored of its requests, or what the planner advises."""
        if text not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(text)
            await self._warn(text)

    async def _warn(self, text: str) -> None:
        await self._socket.send({"type": "communicationWarning", "warning": text})


def _parameter(context: Context, endpoint: Endpoint, value: object) -> Any:
    """Return the body of a call; its record learns which fields have no effect. Raises RequestError for an invalid one,
    and for a field that would change the answer and is not supported."""
    body = _parsed(endpoint.parameter, value)
    context.record.ignored = body.ignored_fields(value) if isinstance(value, dict) else ()
    return body


def _parsed(kind: type[Any], value: object) -> Any:
    try:
        return kind.model_validate({} if value is None else value)
    except ValidationError as error:
        raise invalid_fields(error, value) from None


class BadMessageError(RequestError):
    """A message that is not a JSON object within the limits; `text` is the message."""

    def __init__(self, error: RequestError, text: str = "") -> None:
        super().__init__(error.cause, error.remedy)
        self.text = text


class JsonSocket:
    """The JSON objects of an accepted `websocket`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def first(self) -> dict[str, Any] | None:
        """Return the first object; None, closing the websocket, where it does not come in time. Raises as `receive`."""
        try:
            async with asyncio.timeout(FIRST_TIMEOUT_S):
                return await self.receive()
        except TimeoutError:
            await self.close("The first message did not come in time.")
            return None

    async def receive(self) -> dict[str, Any] | None:
        """Return the next object, None at the end. Raises BadMessageError."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise BadMessageError(RequestError("The message is bytes.", "Send JSON as text."))
        try:
            return parse_object(text.encode("utf-8", "surrogatepass"))
        except RequestError as error:
            raise BadMessageError(error, text) from None

    async def send(self, message: object) -> None:
        """Send an object; it is dropped where the client is gone, which `receive` reports."""
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.send({"type": "websocket.send", "text": compact_json(message).decode()})

    async def close(self, reason: str) -> None:
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.close(_POLICY_VIOLATION, reason)


class NotFoundError(UnknownModelError):
    """A model that is not here, with the data that clients display."""

    def __init__(self, cause: str, remedy: str, display: Mapping[str, Any]) -> None:
        super().__init__(cause, remedy)
        self.display = dict(display)


def no_model_for(query: Mapping[str, Any], error: UserError, loaded: Sequence[str]) -> NotFoundError:
    sample = {"loadedModelsSample": list(loaded[:_N_SAMPLES]), "totalLoadedModels": len(loaded)}
    # for this code the Python SDK 1.5.0 raises LMStudioModelNotFoundError (source: `errorDisplayDataSchema`)
    display = {"code": "generic.noModelMatchingQuery", "query": dict(query), **sample}
    return NotFoundError(error.cause, error.remedy, display)


def no_model_with_path(path: str, error: UserError, present: Sequence[str]) -> NotFoundError:
    sample = {"availablePathsSample": list(present[:_N_SAMPLES]), "totalModels": len(present)}
    return NotFoundError(error.cause, error.remedy, {"code": "generic.pathNotFound", "path": path, **sample})


def sdk_error(error: UserError) -> dict[str, Any]:
    """Return the error as the SDK has it, without `cause`: that would be a stack of calls, which nobody needs."""
    fields = openai_error(error)["error"]  # without folders of this machine
    sent: dict[str, Any] = {
        "title": fields["cause"],
        "rootTitle": fields["cause"],
        "errorData": {"code": fields["code"]},
    }
    if fields["remedy"]:
        sent["suggestion"] = fields["remedy"]
    if isinstance(error, NotFoundError):
        sent["displayData"] = error.display
    return sent
