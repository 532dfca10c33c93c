"""What the bodies of every dialect have in common: the kinds of their fields, and that unknown ones are ignored.

Knows nothing of any one field.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt

__all__ = ["Body", "IdleSeconds", "Text", "TokenIds"]

Text: TypeAlias = Annotated[str, Field(strict=True)]
TokenIds: TypeAlias = list[StrictInt]
IdleSeconds: TypeAlias = Annotated[StrictInt, Field(ge=0, le=10**9)]  # LM Studio's `ttl`


class Body(BaseModel):
    """An object of a request. Clients send many fields that mean nothing here."""

    model_config = ConfigDict(extra="ignore", frozen=True)
