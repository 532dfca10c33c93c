"""Routes as typed functions: a route's signature declares the body it reads and the responses it returns.

The body is read before the route is called, as a JSON object whatever its Content-Type, within limits: seconds, bytes
of text, depth, number of containers. `app.service.http.openapi` makes the document of the same signatures.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

from fastapi import APIRouter
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from app.protocol.errors import RequestError
from app.service.http.access_log import record_of
from app.service.http.errors import RefusedError

BODY_TIMEOUT_S = 60.0
MAX_DEPTH = 64
MAX_CONTAINERS = 1_000_000
MAX_TEXT_BYTES = 16 << 20  # of a body, as much as is tokenized; the rest are files in Base64
_PARSED_ON_THE_LOOP_BYTES = 256 << 10
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)

_FILE_IN_BASE64 = re.compile(rb"[A-Za-z0-9+/=_\\-]{4096,}+")  # with what escapes a slash

_BODY = "body"  # the name of the parameter

Body = TypeVar("Body", bound=BaseModel)


@runtime_checkable
class TellsIgnored(Protocol):
    """A body that knows which of the fields that it was made of have no effect."""

    def ignored_fields(self, fields: dict[str, Any]) -> tuple[str, ...]: ...


class Router(APIRouter):
    """A router whose routes may have a parameter `body`, a BaseModel, and return responses of a declared type."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, _with_body(endpoint), **options | {"response_model": None})


def body_type_of(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """Return the type of the body that a route reads, None for one that reads none."""
    parameter = _signature(endpoint).parameters.get(_BODY)
    return None if parameter is None else parameter.annotation


def return_type_of(endpoint: Callable[..., Any]) -> Any:
    return _signature(endpoint).return_annotation


def _signature(endpoint: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(inspect.unwrap(endpoint), eval_str=True)


def _with_body(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return `endpoint` as FastAPI is to call it: without the body, which is read with our own bounds."""
    kind = body_type_of(endpoint)
    if kind is None:
        return endpoint

    @functools.wraps(endpoint)
    async def read_and_call(request: Request, **arguments: Any) -> Any:
        return await endpoint(request, body=await read_body(request, kind), **arguments)

    signature = _signature(endpoint)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != _BODY]
    read_and_call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return read_and_call


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read and validate the JSON object of `request`; the record of the request learns which fields have no effect.

    Raises RefusedError for one that is too large (413) or too slow (408), RequestError for an invalid one.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await request.body()
    except TimeoutError:
        raise RefusedError(408, "timeout", f"The request's body did not come within {BODY_TIMEOUT_S:g} s.") from None
    except ClientDisconnect:
        raise RefusedError(400, "disconnected", "The client went away before its request was complete.") from None
    is_small = len(data) <= _PARSED_ON_THE_LOOP_BYTES
    fields = parse_object(data) if is_small else await asyncio.to_thread(parse_object, data)
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_fields(error) from None
    if isinstance(body, TellsIgnored):
        record_of(request.scope).ignored = body.ignored_fields(fields)
    return body


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises RequestError for anything else, and beyond the limits of this module."""
    n_bytes = len(data)
    if n_bytes > MAX_TEXT_BYTES:  # without files in Base64
        n_bytes -= sum(match.end() - match.start() for match in _FILE_IN_BASE64.finditer(data))
    if n_bytes > MAX_TEXT_BYTES:
        cause = f"The request has more than {MAX_TEXT_BYTES >> 20} MiB without its pictures and sounds."
        raise RefusedError(413, "body_too_large", cause, "Send less text.")
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or _is_too_deep(data):
        cause = "The request's JSON is nested too deep or has too many parts."
        raise RequestError(cause, f"Nest at most {MAX_DEPTH} deep.")
    try:
        fields = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPED_SURROGATE.search(data):
            json.dumps(fields, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The request's body is not JSON: {error}.", "Send one JSON object in UTF-8.") from None
    if not isinstance(fields, dict):
        raise RequestError("The request's body is not a JSON object.", "Send one JSON object in UTF-8.")
    return fields


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match.group()
        depth += (token in b"[{") - (token in b"]}")
        if depth > MAX_DEPTH:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse_constant(text)


def invalid_fields(error: ValidationError) -> RequestError:
    """Return the error for the first fault: unions report one for each alternative."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("list[", "function-")))
    return RequestError(f"{path or 'The request'}: {fault['msg']}.", "Correct that field.")
