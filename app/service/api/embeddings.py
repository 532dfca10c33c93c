"""What the routes for vectors of all dialects share: how many inputs a request may have, their forms, the numbers."""

from __future__ import annotations

import struct
from typing import Annotated, Any

from pydantic import Field, StrictInt

MAX_INPUTS = 2048  # OpenAI's limit, for every dialect
FLOAT32 = struct.Struct("<f")
InputIds = Annotated[list[StrictInt], Field(min_length=1)]


def inputs_of(value: Any) -> list[str | tuple[int, ...]]:
    """Return the inputs in a text, a list of token ids, or a list of either."""
    is_one = isinstance(value, str) or isinstance(value[0], int)
    return [item if isinstance(item, str) else tuple(item) for item in ([value] if is_one else value)]


def as_floats(vector: bytes) -> list[float]:
    return [value for (value,) in FLOAT32.iter_unpack(vector)]
