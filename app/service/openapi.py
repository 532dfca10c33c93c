"""The OpenAPI document of the routes: what each takes, in one line what it does, and where its answers may be streams.

Owns the document's form. Routes say with `takes` which body they read; what its fields mean stays with the body.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app import __version__

__all__ = ["document", "takes"]

_BODY = "body"
_SCHEMAS = "#/components/schemas/{model}"
_JSON = "application/json"
_STREAMS = ("text/event-stream", "application/x-ndjson")


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what a route says of itself that reads a body of `kind`."""
    return {_BODY: kind}


def document(routes: Iterable[object]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of those of `routes` that are ours."""
    ours = [route for route in routes if isinstance(route, APIRoute) and route.include_in_schema]
    kinds = [kind for route in ours if (kind := _body_of(route))]
    references, definitions = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_SCHEMAS)
    paths: dict[str, dict[str, Any]] = {}
    for route in ours:
        kind = _body_of(route)
        operation = _operation(route, references[kind, "validation"] if kind else None)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(_plain(route.path), {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "localllm", "version": __version__},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }


def _body_of(route: APIRoute) -> type[BaseModel] | None:
    return (route.openapi_extra or {}).get(_BODY)


def _operation(route: APIRoute, body: Mapping[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [_parameter("path", name) for name in route.param_convertors]
        + [_parameter("query", field.alias) for field in route.dependant.query_params],
        "responses": {"default": {"description": "An error in the shape of the dialect.", "content": {_JSON: {}}}},
    }
    content: dict[str, Any] = {media_type: {} for media_type in _media_types(route)}
    operation["responses"]["200"] = {"description": "The answer.", "content": content}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return operation


def _media_types(route: APIRoute) -> tuple[str, ...]:
    kind = _body_of(route)
    told = route.response_class.media_type if isinstance(route.response_class, type) else None
    return (told or _JSON, *(_STREAMS if kind is not None and "stream" in kind.model_fields else ()))


def _parameter(place: str, name: str) -> dict[str, Any]:
    return {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}}


def _plain(path: str) -> str:
    """Return a path without how its parameters are matched."""
    return path.replace(":path}", "}")
