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
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast

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
    value: _Value = _dataclass_decoder(cast("Any", kind), False)(data)
    return value


def decode_checked(kind: type[_Value], data: Any) -> _Value:
    """Return the same of what a file says: each plain field is also of the type that it declares, and no number is NaN
    or infinite. Raises ValueError alone, for whatever is wrong."""
    try:
        value: _Value = _dataclass_decoder(cast("Any", kind), True)(data)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error
    return value


@cache
def _dataclass_decoder(kind: type[Any], is_checked: bool) -> _Decoder:
    hints = typing.get_type_hints(kind)
    parts = [
        (
            item.name,
            item.default is MISSING and item.default_factory is MISSING,
            _decoder(hints[item.name], is_checked),
        )
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
def _decoder(hint: Any, is_checked: bool) -> _Decoder | None:
    """Return what makes a value of type `hint` from JSON data, None where the data is the value. The type of a plain
    value is looked at only if it `is_checked`: each token of an answer is a message."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decoder(arguments[0], is_checked)
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments, is_checked)
    if origin is tuple:
        return _tuple_decoder(arguments, is_checked)
    if origin is list:
        member = _decoder(arguments[0], is_checked)
        return None if member is None else lambda items: [member(item) for item in _listed(items)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = _decoder(arguments[1], is_checked)
        if value is None:
            return _object if is_checked else None
        return lambda data: {key: value(item) for key, item in data.items()}
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return hint
    if is_dataclass(hint):
        return _dataclass_decoder(cast("Any", hint), is_checked)
    if hint is bytes:
        return lambda text: text.encode("latin-1")
    return _plain_check((hint,)) if is_checked else None


_PLAIN: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
    type(None): (type(None),),
}


def _plain_check(members: tuple[Any, ...]) -> _Decoder | None:
    """Return what checks that a value is of one of the plain types and literals among `members`, None without any."""
    kinds = {kind for member in members for kind in _PLAIN.get(member, ())}
    literals = [each for member in members if typing.get_origin(member) is Literal for each in typing.get_args(member)]
    if not kinds and not literals:
        return None

    def check(value: Any) -> Any:
        is_number = type(value) not in (int, float) or -_LARGEST < value < _LARGEST  # which NaN is not
        if (type(value) in kinds and is_number) or value in literals:
            return value
        raise TypeError(f"{str(value)[:40]!r} where something else should be")

    return check


_LARGEST = 1e300


def _listed(items: Any) -> Any:
    if isinstance(items, list | tuple):
        return items
    raise TypeError("no list")


def _object(data: Any) -> Any:
    if isinstance(data, dict):
        return data
    raise TypeError("no object")


def _union_decoder(members: tuple[Any, ...], is_checked: bool) -> _Decoder | None:
    """Return what converts by the shape of the data: an array and an object each belong to one member at most."""
    by_shape: dict[type, _Decoder | None] = {}
    for member in members:
        origin = typing.get_origin(member)
        if origin in (tuple, list):
            by_shape.setdefault(list, _decoder(member, is_checked))
        elif is_dataclass(member) or (isinstance(origin, type) and issubclass(origin, Mapping)):
            by_shape.setdefault(dict, _decoder(cast("Any", member), is_checked))
        elif isinstance(member, type) and issubclass(member, Enum) and str not in members:
            by_shape.setdefault(str, _decoder(member, is_checked))
    others = _plain_check(members) if is_checked else None
    if not any(by_shape.values()):
        return others

    def convert(value: Any) -> Any:
        decoder = by_shape.get(type(value)) or others
        return value if decoder is None else decoder(value)

    return convert


def _tuple_decoder(members: tuple[Any, ...], is_checked: bool) -> _Decoder:
    decoders = [_decoder(each, is_checked) for each in members if each is not Ellipsis]
    if not any(decoders):
        return tuple
    if Ellipsis in members:
        one = cast("_Decoder", decoders[0])
        return lambda items: tuple(map(one, _listed(items)))
    return lambda items: tuple(
        item if decoder is None else decoder(item) for decoder, item in zip(decoders, _listed(items), strict=True)
    )
