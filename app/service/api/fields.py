"""What the bodies of every dialect have in common: the kinds of their fields, and that unknown ones are ignored.

Knows nothing of any one field.

What the objects of every dialect have in common: the kinds of their fields.

Objects are TypedDicts: what a route answers is built as plain dicts, and costs nothing for having a type. They stand in
the OpenAPI document, to which a test holds every route. Knows nothing of any one field.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt
from typing_extensions import TypedDict  # pydantic reads no others before Python 3.12

__all__ = ["Body", "Byte", "Count", "IdleSeconds", "Share", "Size", "Text", "TokenIds", "WithWarnings"]

Text: TypeAlias = Annotated[str, Field(strict=True)]
TokenIds: TypeAlias = list[StrictInt]
IdleSeconds: TypeAlias = Annotated[StrictInt, Field(ge=0, le=10**9)]  # LM Studio's `ttl`


class Body(BaseModel):
    """An object of a request. Clients send many fields that mean nothing here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Count: TypeAlias = Annotated[int, Field(ge=0)]
Size: TypeAlias = Annotated[float, Field(ge=0)]  # seconds, milliseconds, rates
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]


class WithWarnings(TypedDict, total=False):
    """An answer of a model; `warnings` come where the planner has something to say of how that lies in memory."""

    warnings: list[str]
