"""The codec of every value that crosses a process: frozen dataclasses to JSON and back.

Owns the JSON form of each Python type. Independent of any one value.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Union, cast

_Decoder: TypeAlias = Callable[[Any], Any]
_Value = TypeVar("_Value")


def encode(value: Any) -> Any:
    """Return `value` as plain JSON data: a dataclass becomes an object, a tuple an array, an enum its value."""
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) or isinstance(value, (bytes, Path)):
        return encode(json_default(value))
    return value


def json_default(value: Any) -> Any:
    """Return one level of what `json` cannot write itself, as `JSONEncoder(default=...)` asks; bytes become Latin-1."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Path):
        return str(value)
    return {name: getattr(value, name) for name in _names(cast("Any", type(value)))}


@cache  # each token of an answer is a message
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def decode(kind: type[_Value], data: Any) -> _Value:
    """Return the dataclass `kind` that `data` describes. Unknown fields are ignored, missing ones take their default.
    Raises KeyError, TypeError or ValueError for data that describes something else."""
    value: _Value = _dataclass_decoder(cast("Any", kind))(data)
    return value


@cache
def _dataclass_decoder(kind: type[Any]) -> _Decoder:
    hints = typing.get_type_hints(kind)
    parts = [
        (item.name, item.default is MISSING and item.default_factory is MISSING, _decoder(hints[item.name]))
        for item in fields(kind)
        if item.init
    ]

    def build(data: Any) -> Any:
        values = {}
        for name, is_required, convert in parts:
            if is_required or name in data:
                value = data[name]
                values[name] = value if convert is None else convert(value)
        return kind(**values)

    return build


@cache
def _decoder(hint: Any) -> _Decoder | None:
    """Return what makes a value of type `hint` from JSON data, None where the data is the value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decoder(arguments[0])
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is list:
        member = _decoder(arguments[0])
        return None if member is None else lambda items: [member(item) for item in items]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = _decoder(arguments[1])
        return None if value is None else lambda data: {key: value(item) for key, item in data.items()}
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return hint
    if is_dataclass(hint):
        return _dataclass_decoder(cast("Any", hint))
    return (lambda text: text.encode("latin-1")) if hint is bytes else None


def _union_decoder(members: tuple[Any, ...]) -> _Decoder | None:
    """Return what converts by the shape of the data: an array and an object each belong to one member at most."""
    of_arrays = next((_decoder(each) for each in members if typing.get_origin(each) in (tuple, list)), None)
    of_objects = next((_decoder(cast("Any", each)) for each in members if is_dataclass(each)), None)
    of_texts = None
    if str not in members:
        of_texts = next((_decoder(each) for each in members if isinstance(each, type) and issubclass(each, Enum)), None)
    by_shape: dict[type, _Decoder | None] = {list: of_arrays, dict: of_objects, str: of_texts}
    if not any(by_shape.values()):
        return None

    def convert(value: Any) -> Any:
        decoder = by_shape.get(type(value))
        return value if decoder is None else decoder(value)

    return convert


def _tuple_decoder(members: tuple[Any, ...]) -> _Decoder:
    decoders = [_decoder(each) for each in members if each is not Ellipsis]
    if not any(decoders):
        return tuple
    if Ellipsis in members:
        one = cast("_Decoder", decoders[0])
        return lambda items: tuple(map(one, items))
    return lambda items: tuple(
        item if decoder is None else decoder(item) for decoder, item in zip(decoders, items, strict=True)
    )
