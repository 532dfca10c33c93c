"""The OpenAPI document of the routes: what each takes, what it answers, and with which statuses it refuses.

Owns the document's form. Routes say with `takes`, `gives` and `refuses` what they read and answer; what the fields mean
stays with bodies and objects. A status that a route does not name does not come from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from app import __version__

__all__ = ["document", "gives", "refuses", "takes"]

_BODY = "body"
_SCHEMAS = "#/components/schemas/{model}"
_JSON = "application/json"
_EVENTS = "text/event-stream"
_LINES = "application/x-ndjson"
_OF_EACH = "x-item-schema"  # OpenAPI 3.2 calls it itemSchema; in 3.1 a stream has one schema, for all of its text
_OF_ALL = ("401", "403", "413", "500")  # the guard's, and a bug's
_OF_BODIES = ("400", "408")

ErrorKind = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is answered: JSON of a `kind`, nothing where that is None; or streams, by media type what each part is."""

    kind: Any
    streams: Mapping[str, Any] = field(default_factory=dict)


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what a route says of itself that reads a body of `kind`."""
    return {_BODY: kind}


def gives(kind: Any, *, events: Any = None, lines: Any = None, status: int = 200) -> dict[str, Any]:
    """Return what a route says of itself that answers with JSON of `kind`, or with nothing where that is None.

    Where the body may ask for a stream, it is one of server-sent `events`, or of `lines` of JSON, of these kinds.
    """
    streams = {_EVENTS: events, _LINES: lines}
    return {str(status): _Answer(kind, {name: each for name, each in streams.items() if each is not None})}


def refuses(*statuses: int) -> dict[str, Any]:
    """Return what a route says of itself that answers with an error of these, beside those that every route has."""
    return {str(status): None for status in statuses}


def document(routes: Iterable[object], error_kind: ErrorKind) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of those of `routes` that are ours; `error_kind` says what a path's errors are.

    Raises pydantic's errors for a kind that has no schema.
    """
    ours = [route for route in routes if isinstance(route, APIRoute) and route.include_in_schema]
    schemas = _Schemas(kind for route in ours for kind in _kinds(route, error_kind))
    paths: dict[str, dict[str, Any]] = {}
    for route in ours:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(route, schemas, error_kind)
            paths.setdefault(_plain(route.path), {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "localllm", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas.definitions},
    }


class _Schemas:
    """The schemas of bodies and of answers: each once, by its kind."""

    def __init__(self, kinds: Iterable[tuple[Any, JsonSchemaMode]]) -> None:
        wanted = [(kind, mode, TypeAdapter[Any](kind)) for kind, mode in dict.fromkeys(kinds)]
        self._found, definitions = TypeAdapter.json_schemas(wanted, ref_template=_SCHEMAS, schema_generator=_Strict)
        self.definitions: dict[str, Any] = definitions.get("$defs", {})

    def body(self, kind: Any) -> JsonSchemaValue:
        return self._found[kind, "validation"]

    def answer(self, kind: Any) -> JsonSchemaValue:
        return self._found[kind, "serialization"]


class _Strict(GenerateJsonSchema):
    """Of what we answer every field is there unless it is NotRequired, and there are no others."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return {"additionalProperties": False} | super().typed_dict_schema(schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return super().dataclass_schema(schema) | {"additionalProperties": False}

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def _said(route: APIRoute) -> Mapping[str, Any]:
    return route.openapi_extra or {}


def _answers(route: APIRoute) -> dict[str, _Answer | None]:
    """Return what comes with each status, None for an error."""
    said = {status: answer for status, answer in _said(route).items() if status != _BODY}
    refusals = (*_OF_ALL, *(_OF_BODIES if _BODY in _said(route) else ()))
    return dict(sorted((dict.fromkeys(refusals) | said).items()))


def _kinds(route: APIRoute, error_kind: ErrorKind) -> Iterable[tuple[Any, JsonSchemaMode]]:
    if _BODY in _said(route):
        yield _said(route)[_BODY], "validation"
    for answer in _answers(route).values():
        if answer is None:
            yield error_kind(route.path), "serialization"
            continue
        for kind in (answer.kind, *answer.streams.values()):
            if kind is not None:
                yield kind, "serialization"


def _operation(route: APIRoute, schemas: _Schemas, error_kind: ErrorKind) -> dict[str, Any]:
    answers = {
        status: _response(route, status, _Answer(error_kind(route.path)) if answer is None else answer, schemas)
        for status, answer in _answers(route).items()
    }
    operation: dict[str, Any] = {
        "summary": inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [_parameter("path", name) for name in route.param_convertors]
        + [_parameter("query", field.alias) for field in route.dependant.query_params],
        "responses": answers,
    }
    if _BODY in _said(route):
        schema = schemas.body(_said(route)[_BODY])
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    return operation


def _response(route: APIRoute, status: str, answer: _Answer, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.kind is not None:
        content[_media_type(route, status)] = {"schema": schemas.answer(answer.kind)}
    for media_type, each in answer.streams.items():
        content[media_type] = {_OF_EACH: schemas.answer(each)}
    told = {"description": f"{HTTPStatus(int(status)).phrase}."}
    return {**told, "content": content} if content else told


def _media_type(route: APIRoute, status: str) -> str:
    """Return the type of a whole answer: the response class's, where a route has one of its own; errors are JSON."""
    own = route.response_class if isinstance(route.response_class, type) else None
    return (own.media_type if own is not None and status.startswith("2") else None) or _JSON


def _parameter(place: str, name: str) -> dict[str, Any]:
    return {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}}


def _plain(path: str) -> str:
    """Return a path without how its parameters are matched."""
    return path.replace(":path}", "}")
