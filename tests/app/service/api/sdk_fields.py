"""The fields that an SDK can send in a request, found in its parameter types, beside the body that takes them here."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ValidationError

from app.service.api.fields import Body


@dataclass(frozen=True, slots=True)
class SdkField:
    """A field by its path of names in the request; `is_read` where the body here declares it."""

    prefix: str
    name: str
    is_read: bool

    @property
    def path(self) -> str:
        return self.prefix + self.name


def walked(sdk: Any, body: type[Body]) -> Iterator[SdkField]:
    """Yield each field of the type `sdk` and of the types in it, each path once. Objects that a body takes as they are
    (a schema) are not looked into, nor tools and items that it says are of no use."""
    yield from {field.path: field for field in _walked(_objects(sdk), (body,), "", frozenset())}.values()


def _walked(
    sdks: list[type], bodies: tuple[type[Body], ...], prefix: str, outer: frozenset[tuple[type, type[Body]]]
) -> Iterator[SdkField]:
    for sdk in sdks:
        for body in bodies:
            if (sdk, body) in outer or not _fits(sdk, body):  # a type that holds itself
                continue
            known = {field.alias or name: field.annotation for name, field in body.model_fields.items()}
            for name, kind in _fields_of(sdk).items():
                yield SdkField(prefix, name, name in known)
                if name in known:
                    inner = tuple(each for each in _classes(known[name]) if issubclass(each, Body))
                    yield from _walked(_objects(kind), inner, f"{prefix}{name}.", outer | {(sdk, body)})


def _fits(sdk: type, body: type[Body]) -> bool:
    """Whether `body` takes an object of the type `sdk`, and finds a use for it."""
    fields = _fields_of(sdk)
    sample = {name: values[0] for name, kind in fields.items() if (values := _literals(kind))}
    try:
        return not body.model_validate(sample).unused
    except ValidationError as error:  # what the SDK's type never has is needed: the body beside it takes another type
        return not any(fault["type"] == "missing" and fault["loc"][0] not in fields for fault in error.errors())


def _fields_of(sdk: type) -> Mapping[str, Any]:
    if issubclass(sdk, BaseModel):  # Ollama's, which writes `from_` as `from`
        return {name.rstrip("_"): field.annotation for name, field in sdk.model_fields.items()}
    return typing_extensions.get_type_hints(sdk)


def _objects(kind: Any) -> list[type]:
    """Return the object types in an annotation."""
    return [each for each in _classes(kind) if issubclass(each, BaseModel) or typing_extensions.is_typeddict(each)]


def _classes(kind: Any) -> Iterator[type]:
    if isinstance(kind, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else typing_extensions.TypeAliasType):
        yield from _classes(kind.__value__)
    elif arguments := get_args(kind):
        if get_origin(kind) is not typing.Literal:
            for argument in arguments:
                yield from _classes(argument)
    elif isinstance(kind, type) and not isinstance(kind, types.GenericAlias):
        yield kind


def _literals(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is typing.Literal:
        return get_args(kind)
    if get_origin(kind) in (typing_extensions.Required, typing_extensions.NotRequired):
        return _literals(get_args(kind)[0])
    return ()
