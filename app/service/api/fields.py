"""The field types that the bodies and objects of all dialects share.

Objects are TypedDicts: routes build their answers as plain dicts, so a type costs nothing at run time. The OpenAPI
document is made of them. Knows no single field but `warnings`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt
from typing_extensions import TypedDict  # pydantic accepts no other before Python 3.12

__all__ = ["Body", "Byte", "IdleSeconds", "TokenIds", "WithWarnings"]

TokenIds: TypeAlias = list[StrictInt]
IdleSeconds: TypeAlias = Annotated[StrictInt, Field(ge=0, le=10**9)]  # LM Studio's `ttl`
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]


class Body(BaseModel):
    """An object of a request. Unknown fields are ignored: clients send many that mean nothing here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class WithWarnings(TypedDict, total=False):
    """An answer of a model; `warnings` come where the planner has advice on how the model lies in memory."""

    warnings: list[str]
