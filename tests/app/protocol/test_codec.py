"""Values across processes: what goes in comes out, whatever its types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from app.protocol.codec import decode, encode, json_default


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
