"""Values across processes: what goes in comes out, whatever its types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from app.protocol.codec import decode, decode_checked, encode, json_default


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    point: Point
    maybe: Point | None
    points: tuple[Point, ...]
    pair: tuple[str, int]
    pieces: tuple[bytes, ...]
    input: str | tuple[int, ...]
    colour: Colour
    maybe_colour: Colour | None
    path: Path
    by_name: Mapping[str, Point]
    pairs: tuple[tuple[str, float], ...] | None
    anything: Mapping[str, Any]
    maybe_anything: Mapping[str, Any] | None
    kind: Literal["a", "b"]
    numbers: list[tuple[int, int]] = field(default_factory=list)


EVERYTHING = Everything(
    point=Point(1),
    maybe=None,
    points=(Point(1), Point(2, 3.0)),
    pair=("a", 1),
    pieces=(b"\x00\xff",),
    input=(1, 2),
    colour=Colour.RED,
    maybe_colour=Colour.RED,
    path=Path("a") / "b",
    by_name={"a": Point(3)},
    pairs=(("a", 1.0),),
    anything={"a": [1]},
    maybe_anything={"a": None},
    kind="b",
    numbers=[(1, 2)],
)


def test_a_value_survives_json() -> None:
    assert decode(Everything, json.loads(json.dumps(encode(EVERYTHING)))) == EVERYTHING


def test_the_json_hook_writes_the_same_text() -> None:
    assert json.loads(json.dumps(EVERYTHING, default=json_default)) == json.loads(json.dumps(encode(EVERYTHING)))


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    assert decode(Point, {"x": 1, "z": 2}) == Point(1)


@pytest.mark.parametrize("data", [{}, None, []])
def test_data_of_another_kind_is_an_error(data: object) -> None:
    with pytest.raises((KeyError, TypeError)):
        decode(Point, data)


def test_what_is_checked_is_the_same_value() -> None:
    assert decode_checked(Everything, json.loads(json.dumps(encode(EVERYTHING)))) == EVERYTHING


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("point", {"x": "1"}),
        ("point", {"x": True}),
        ("point", {"x": 1.5}),
        ("point", {"x": 1, "y": "0.5"}),
        ("point", {"x": 1, "y": float("nan")}),
        ("point", {"x": 1, "y": float("inf")}),
        ("point", {"x": 10**400}),
        ("point", None),
        ("point", []),
        ("maybe", 1),
        ("points", "ab"),
        ("points", {"x": 1}),
        ("pair", ["a"]),
        ("pair", [1, 1]),
        ("pair", "ab"),
        ("input", 1.5),
        ("input", ["a"]),
        ("colour", "green"),
        ("maybe_colour", 3),
        ("path", 1),
        ("by_name", {"a": 1}),
        ("by_name", []),
        ("pairs", [["a", None]]),
        ("anything", [1]),
        ("anything", None),
        ("maybe_anything", "a"),
        ("kind", "c"),
        ("kind", ["a"]),
        ("numbers", [[1, "2"]]),
        ("numbers", "12"),
    ],
)
def test_a_file_that_says_another_type_is_a_value_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="not a Everything"):
        decode_checked(Everything, {**encode(EVERYTHING), name: value})


@pytest.mark.parametrize("data", [None, 1, "a", [], {}, {"point": 1}])
def test_whatever_is_no_object_is_a_value_error(data: object) -> None:
    with pytest.raises(ValueError, match="not a Everything"):
        decode_checked(Everything, data)
