"""The body of a request as a checked JSON object, whatever its Content-Type.

Owns the limits: bytes, seconds, depth, number of containers. Independent of the meaning of fields.
"""

from __future__ import annotations

import asyncio
import json
import re
from math import isfinite
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from app.service.http.errors import RefusedError
from quantizer.errors import RequestError

__all__ = ["MAX_BODY_BYTES", "parse_object", "read_body"]

MAX_BODY_BYTES = 16 << 20  # as much text as is tokenized
BODY_TIMEOUT_S = 60.0
MAX_DEPTH = 64
MAX_CONTAINERS = 1_000_000
_PARSED_ON_THE_LOOP_BYTES = 256 << 10
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read and validate the JSON object of `request`, ignoring unknown fields.

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
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises RequestError for anything else, and beyond the limits of this module."""
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or _is_too_deep(data):
        cause = "The request's JSON is nested too deep or has too many parts."
        raise RequestError(cause, f"Nest at most {MAX_DEPTH} deep.")
    try:
        fields = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPED_SURROGATE.search(data):
            json.dumps(fields, ensure_ascii=False).encode()  # refuses half a pair, which is no character
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
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse_constant(text)


def _invalid(error: ValidationError) -> RequestError:
    """Return the first fault: unions report one for each alternative."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("list[", "function-")))
    return RequestError(f"{path or 'The request'}: {fault['msg']}.", "Correct that field.")
