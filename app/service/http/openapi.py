"""The OpenAPI document of the routes, made of their signatures: bodies, answers, and the statuses of errors.

A route's parameter `body` and its return type say what it reads and answers, `errors` with which statuses it refuses; a
status that a route does not name does not come from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette.responses import PlainTextResponse, Response

from app import __version__
from app.service.http.routing import body_type_of, return_type_of
from app.service.http.streaming import EventStream, JsonResponse

_SCHEMAS = "#/components/schemas/{model}"
_JSON = "application/json"
_ITEM_SCHEMA = "x-item-schema"  # OpenAPI 3.2 calls it itemSchema; in 3.1 a stream has one schema, for all of its text
_ALWAYS = (401, 403, 413, 500)  # the guard's, and a bug's
_WITH_BODY = (400, 408)

ErrorKind = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with one status: the types of its whole content and of the items of its streams, by media type."""

    content: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)


def errors(*statuses: int, kind: Any = None) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that answers with these errors, beside those that every route has.

    Their body is of `kind`, None for the usual one of the path.
    """
    return {str(status): kind for status in statuses}


def document(routes: Iterable[object], error_kind: ErrorKind) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of our `routes`; `error_kind` returns the type of a path's errors.

    Raises pydantic's errors for a kind that has no schema.
    """
    ours = [
        (route, _answers(route, error_kind))
        for route in routes
        if isinstance(route, APIRoute) and route.include_in_schema
    ]
    schemas = _Schemas(kind for route, answers in ours for kind in _kinds(route, answers))
    paths: dict[str, dict[str, Any]] = {}
    for route, answers in ours:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = route.path.replace(":path}", "}")  # without how its parameters are matched
            paths.setdefault(path, {})[method.lower()] = _operation(route, answers, schemas)
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
    """In answers every field is required unless it is NotRequired, and there are no other fields."""

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


def _answers(route: APIRoute, error_kind: ErrorKind) -> dict[str, _Answer]:
    kind = error_kind(route.path)
    refusals = (*_ALWAYS, *(_WITH_BODY if body_type_of(route.endpoint) else ()))
    extra: Mapping[str, Any] = errors(*refusals) | (route.openapi_extra or {})
    answers = {status: _Answer({_JSON: kind if own is None else own}) for status, own in extra.items()}
    return dict(sorted((answers | {str(route.status_code or 200): _success(route)}).items()))


def _success(route: APIRoute) -> _Answer:
    """Return the answer that the return type of a route declares; a plain Response has no content."""
    answer = _Answer()
    annotation = return_type_of(route.endpoint)
    members = (annotation,) if _response_type(annotation) else get_args(annotation)
    for member in members:
        response, items = _response_type(member), get_args(member)
        if issubclass(response, EventStream):
            answer.streams[str(response.media_type)] = items[0]
        elif issubclass(response, JsonResponse):
            answer.content[_JSON] = items[0]
        elif issubclass(response, PlainTextResponse):
            answer.content[str(response.media_type)] = str
    return answer


def _response_type(annotation: Any) -> Any:
    """Return the response class that `annotation` is, with or without a parameter, else None."""
    kind = get_origin(annotation) or annotation
    return kind if isinstance(kind, type) and issubclass(kind, Response) else None


def _kinds(route: APIRoute, answers: Mapping[str, _Answer]) -> Iterable[tuple[Any, JsonSchemaMode]]:
    if (body := body_type_of(route.endpoint)) is not None:
        yield body, "validation"
    for answer in answers.values():
        for kind in (*answer.content.values(), *answer.streams.values()):
            yield kind, "serialization"


def _operation(route: APIRoute, answers: Mapping[str, _Answer], schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [_parameter("path", name) for name in route.param_convertors]
        + [_parameter("query", field.alias) for field in route.dependant.query_params],
        "responses": {status: _response(status, answer, schemas) for status, answer in answers.items()},
    }
    if (body := body_type_of(route.endpoint)) is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas.body(body)}}}
    return operation


def _response(status: str, answer: _Answer, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {
        **{media_type: {"schema": schemas.answer(kind)} for media_type, kind in answer.content.items()},
        **{media_type: {_ITEM_SCHEMA: schemas.answer(kind)} for media_type, kind in answer.streams.items()},
    }
    description = {"description": f"{HTTPStatus(int(status)).phrase}."}
    return {**description, "content": content} if content else description


def _parameter(place: str, name: str) -> dict[str, Any]:
    return {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}}
