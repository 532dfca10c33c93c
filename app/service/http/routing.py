"""Routes as typed functions: a route's signature declares the body it reads and the responses it returns.

Owns reading the body before the route is called. `app.service.http.openapi` makes the document of the same signatures.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from app.service.http.body import read_body

__all__ = ["Router", "body_type_of", "return_type_of"]

_BODY = "body"


class Router(APIRouter):
    """A router whose routes may have a parameter `body`, a BaseModel, and return responses of a declared type."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, _with_body(endpoint), **options | {"response_model": None})


def body_type_of(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """Return the type of the body that a route reads, None for one that reads none."""
    parameter = _signature(endpoint).parameters.get(_BODY)
    return None if parameter is None else parameter.annotation


def return_type_of(endpoint: Callable[..., Any]) -> Any:
    """Return the declared return type of a route or of another function."""
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
