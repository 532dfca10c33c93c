"""Routes as typed functions: a route's signature declares the body it reads and the responses it returns.

The body is read before the route is called, as a JSON object whatever its Content-Type, within limits: seconds, bytes
of text, depth, number of containers. The OpenAPI document is made of the same signatures: a parameter `body` and the
return type say what a route reads and answers, `errors` with which statuses it refuses; a status that a route does not
name does not come from it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import isfinite
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, get_args, get_origin, runtime_checkable

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette import routing
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from app import __version__
from app.common.json_limits import MAX_ITEMS, STRING_OR_BRACKET, too_long_list, too_many_parts
from app.common.terminal import printable_line
from app.protocol.errors import RequestError
from app.service.http.access_log import RequestRecord, record_of
from app.service.http.errors import RefusedError
from app.service.http.field_faults import invalid_fields, name_field
from app.service.http.streaming import ByteStream, EventStream, JsonResponse
from quantizer.figures import format_number

BODY_TIMEOUT_S = 60.0
MAX_DEPTH = 64
MAX_TEXT_BYTES = 16 << 20  # of a body, as much as is tokenized; the rest are files in Base64
MAX_DECODED_BYTES = 64 << 20  # as the guard takes of a body that is not compressed
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PARSED_ON_THE_LOOP_BYTES = 32 << 10  # some milliseconds, where each message is small
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_FILE_IN_BASE64 = re.compile(rb"[A-Za-z0-9+/=_\\-]{4096,}+")  # with what escapes a slash

_MOST_SHOWN = 100  # characters of a path
_BODY, _REQUEST = "body", "request"  # names of parameters
_SCHEMAS = "#/components/schemas/{model}"
_JSON, _FORM = "application/json", "multipart/form-data"
_BYTES = "application/octet-stream"
_ITEM_SCHEMA = "x-item-schema"  # OpenAPI 3.2 calls it itemSchema; in 3.1 a stream has one schema, for all of its text
_ALWAYS = (401, 403, 413, 500)  # the guard's, and a bug's
_WITH_BODY = (400, 408, 415)

ErrorKind = Callable[[str], Any]
Endpoint: TypeAlias = Callable[..., Awaitable[Response]]

AnEndpoint = TypeVar("AnEndpoint", bound=Endpoint)
Body = TypeVar("Body", bound=BaseModel)


@runtime_checkable
class TellsIgnored(Protocol):
    """A body that knows which of the fields that it was made of have no effect."""

    def ignored_fields(self, fields: dict[str, Any]) -> tuple[str, ...]: ...


class Route(routing.Route):
    """A route to `endpoint`, which returns a Response.

    `endpoint` may take the request, a `body` of a BaseModel, and texts: the path's parameters, and those of the query,
    which have a default. `refusals` are the errors that its document names, as `errors` returns them. A `form` is the
    type of what it reads itself, by `app.service.http.forms`: the document names it.
    """

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        methods: Iterable[str],
        *,
        status_code: int,
        refusals: Mapping[str, Any],
        include_in_schema: bool,
        form: type[BaseModel] | None = None,
    ) -> None:
        parameters = inspect.signature(endpoint).parameters  # without their types, whose evaluation takes a millisecond
        self.reads_body = _BODY in parameters
        self.query = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self.status_code = status_code
        self.refusals = refusals
        self.form = form
        super().__init__(path, self._respond, include_in_schema=include_in_schema)
        self.methods = set(methods)  # Starlette answers HEAD wherever it answers GET
        self.called = endpoint
        self._takes_request = _REQUEST in parameters
        self._body_type: type[BaseModel] | None = None

    async def _respond(self, request: Request) -> Response:
        arguments: dict[str, Any] = dict(request.path_params)
        for name, default in self.query.items():
            arguments[name] = request.query_params.get(name, default)
        if self._takes_request:
            arguments[_REQUEST] = request
        if self.reads_body:
            self._body_type = self._body_type or body_type_of(self.called)
            assert self._body_type is not None, "a parameter `body` has a type"
            arguments[_BODY] = await read_body(request, self._body_type)
        try:
            response: Response = await self.called(**arguments)
        except RequestError as error:
            name_field(error, record_of(request.scope).fields)
            raise
        return response


class Router:
    """The routes of a module, below `prefix`."""

    def __init__(self, prefix: str = "", *, include_in_schema: bool = True) -> None:
        self.routes: list[routing.BaseRoute] = []
        self._prefix = prefix
        self._include_in_schema = include_in_schema

    def route(
        self,
        path: str,
        *methods: str,
        status_code: int = 200,
        refusals: Mapping[str, Any] | None = None,
        form: type[BaseModel] | None = None,
    ) -> Callable[[AnEndpoint], AnEndpoint]:
        """Return a decorator that adds a route and returns the endpoint as it is."""

        def add(endpoint: AnEndpoint) -> AnEndpoint:
            route = Route(
                self._prefix + path,
                endpoint,
                methods,
                status_code=status_code,
                refusals=refusals or {},
                include_in_schema=self._include_in_schema,
                form=form,
            )
            self.routes.append(route)
            return endpoint

        return add

    def get(self, path: str, **options: Any) -> Callable[[AnEndpoint], AnEndpoint]:
        return self.route(path, "GET", **options)

    def post(self, path: str, **options: Any) -> Callable[[AnEndpoint], AnEndpoint]:
        return self.route(path, "POST", **options)

    def delete(self, path: str, **options: Any) -> Callable[[AnEndpoint], AnEndpoint]:
        return self.route(path, "DELETE", **options)


def body_type_of(endpoint: Endpoint) -> type[BaseModel] | None:
    parameter = _signature(endpoint).parameters.get(_BODY)
    return None if parameter is None else parameter.annotation


def return_type_of(endpoint: Callable[..., Any]) -> Any:
    return _signature(endpoint).return_annotation


def _signature(endpoint: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(endpoint, eval_str=True)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read and validate a JSON object; the request's record learns which fields have no effect. Raises RefusedError for
    one that is too large (413) or too slow (408), RequestError for an invalid one."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await request.body()
    except TimeoutError:
        raise RefusedError(
            408, "timeout", f"The request's body did not come within {format_number(BODY_TIMEOUT_S)} s."
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "disconnected", "The client went away before its request was complete.") from None
    encoding = request.headers.get("content-encoding", "")
    is_small = len(data) <= _PARSED_ON_THE_LOOP_BYTES and not encoding
    record = record_of(request.scope)

    def read() -> Body:
        return validated(kind, parse_object(data if is_small else decoded(data, encoding)), record)

    return read() if is_small else await asyncio.to_thread(read)


def validated(kind: type[Body], fields: dict[str, Any], record: RequestRecord) -> Body:
    """Return the body of a request that has `fields`; its record learns which of them have no effect. Raises
    RequestError for an invalid one."""
    record.fields = frozenset(fields)
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_fields(error, fields) from None
    if isinstance(body, TellsIgnored):
        record.ignored = body.ignored_fields(fields)
    return body


def decoded(data: bytes, encodings: str) -> bytes:
    """Return a body without its Content-Encoding. Raises RefusedError for one that is unknown (415) or, decoded, larger
    than any body may be (413), RequestError for a damaged one."""
    for encoding in reversed([name.strip().lower() for name in encodings.split(",") if name.strip()]):
        if encoding == "identity":
            continue
        if encoding not in _WINDOW_BITS:
            cause = f"The request's Content-Encoding is {encoding[:40]!r}."
            code = "request_body_encoding_unsupported"
            raise RefusedError(415, code, cause, f"Use {' or '.join(_WINDOW_BITS)}, or none.", {"error_code": code})
        decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
        try:
            whole = decoder.decompress(data, MAX_DECODED_BYTES + 1)
        except zlib.error:
            whole = None
        if whole is not None and len(whole) > MAX_DECODED_BYTES:
            cause = f"The request's body is larger than {MAX_DECODED_BYTES >> 20} MiB once it is decoded."
            raise RefusedError(413, "body_too_large", cause, "Send less.")
        if whole is None or not decoder.eof or decoder.unused_data:
            code = "request_body_encoding_invalid"
            cause = f"The request's body is not {encoding}, as its Content-Encoding says."
            raise RefusedError(400, code, cause, "Send it whole.", {"error_code": code})
        data = whole
    return data


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises RequestError for anything else, and beyond the limits of this module."""
    n_bytes = len(data)
    if n_bytes > MAX_TEXT_BYTES:  # without files in Base64
        n_bytes -= sum(match.end() - match.start() for match in _FILE_IN_BASE64.finditer(data))
    if n_bytes > MAX_TEXT_BYTES:
        cause = f"The request has more than {MAX_TEXT_BYTES >> 20} MiB without its pictures and sounds."
        raise RefusedError(413, "body_too_large", cause, "Send less text.")
    if too_many := too_many_parts(data):
        parts, n, most = too_many
        raise RequestError(f"The request has {n:,} {parts}.", f"Send at most {most:,}.")
    if _is_too_deep(data):
        raise RequestError("The request's JSON is nested too deep.", f"Nest at most {MAX_DEPTH} deep.")
    try:
        fields = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPED_SURROGATE.search(data):
            json.dumps(fields, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The request's body is not JSON: {error}.", "Send one JSON object in UTF-8.") from None
    if not isinstance(fields, dict):
        raise RequestError("The request's body is not a JSON object.", "Send one JSON object in UTF-8.")
    if too_long := too_long_list(fields):
        path, n_items = too_long
        name = printable_line(path)[:_MOST_SHOWN]
        refusal = RequestError(f"{name} has {n_items:,} items.", f"Send at most {MAX_ITEMS:,}.")
        refusal.param = name
        raise refusal
    return fields


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in STRING_OR_BRACKET.finditer(data):
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with one status: the types of its whole content and of the items of its streams, by media type."""

    content: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)


def errors(*statuses: int, kind: Any = None) -> dict[str, Any]:
    """Return the `refusals` of a route that answers with these errors, beside those that every route has; their body is
    of `kind`, None for the usual one of the path."""
    return {str(status): kind for status in statuses}


def document(routes: Iterable[object], error_kind: ErrorKind) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of our `routes`; `error_kind` returns the type of a path's errors. Raises
    pydantic's errors for a kind that has no schema."""
    ours = [
        (route, _answers(route, error_kind)) for route in routes if isinstance(route, Route) and route.include_in_schema
    ]
    schemas = _Schemas(kind for route, answers in ours for kind in _kinds(route, answers))
    paths: dict[str, dict[str, Any]] = {}
    for route, answers in ours:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = route.path.replace(":path}", "}")  # without how its parameters are matched
            operation = paths.setdefault(path, {})[method.lower()] = {
                "summary": inspect.cleandoc(route.called.__doc__ or "").partition("\n")[0],
                "parameters": [_parameter("path", name) for name in route.param_convertors]
                + [_parameter("query", name) for name in route.query],
                "responses": {status: _response(status, answer, schemas) for status, answer in answers.items()},
            }
            if (body := route.form or body_type_of(route.called)) is not None:
                media_type = _FORM if route.form else _JSON
                operation["requestBody"] = {"required": True, "content": {media_type: {"schema": schemas.body(body)}}}
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
        self, field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField, total: bool
    ) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def _answers(route: Route, error_kind: ErrorKind) -> dict[str, _Answer]:
    kind = error_kind(route.path)
    refusals = (*_ALWAYS, *(_WITH_BODY if route.form or body_type_of(route.called) else ()))
    extra: Mapping[str, Any] = {**errors(*refusals), **route.refusals}
    answers = {status: _Answer({_JSON: kind if own is None else own}) for status, own in extra.items()}
    answer = answers[str(route.status_code)] = _Answer()  # a plain Response has no content
    annotation = return_type_of(route.called)
    members = (annotation,) if _response_type(annotation) else get_args(annotation)
    for member in members:
        response, items = _response_type(member), get_args(member)
        if issubclass(response, ByteStream):
            answer.content[str(response.media_type)] = str
        elif issubclass(response, EventStream):
            answer.streams[str(response.media_type)] = items[0]
        elif issubclass(response, JsonResponse):
            answer.content[_JSON] = items[0]
        elif issubclass(response, PlainTextResponse):
            answer.content[str(response.media_type)] = str
        elif issubclass(response, FileResponse):
            answer.content[_BYTES] = str
    return dict(sorted(answers.items()))


def _response_type(annotation: Any) -> Any:
    kind = get_origin(annotation) or annotation
    return kind if isinstance(kind, type) and issubclass(kind, Response) else None


def _kinds(route: Route, answers: Mapping[str, _Answer]) -> Iterable[tuple[Any, JsonSchemaMode]]:
    if (body := route.form or body_type_of(route.called)) is not None:
        yield body, "validation"
    for answer in answers.values():
        for kind in (*answer.content.values(), *answer.streams.values()):
            yield kind, "serialization"


def _response(status: str, answer: _Answer, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {
        **{media_type: {"schema": schemas.answer(kind)} for media_type, kind in answer.content.items()},
        **{media_type: {_ITEM_SCHEMA: schemas.answer(kind)} for media_type, kind in answer.streams.items()},
    }
    return {"description": f"{HTTPStatus(int(status)).phrase}."} | ({"content": content} if content else {})


def _parameter(place: str, name: str) -> dict[str, Any]:
    return {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}}
