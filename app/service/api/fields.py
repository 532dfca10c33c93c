"""The field types that the bodies and objects of all dialects share.

Objects are TypedDicts: routes build their answers as plain dicts, so a type costs nothing at run time. The OpenAPI
document is made of them. Knows no single field but `warnings`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field, StrictInt
from typing_extensions import TypedDict  # pydantic accepts no other before Python 3.12

from app.service.api.ignored_fields import TellingBody
from app.service.pool.keep_alive import IdleLimit

TokenIds: TypeAlias = list[StrictInt]
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]


class Body(TellingBody):
    """An object of a request. Unknown fields are ignored, and told: see `ignored_fields`."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TtlBody(Body):
    """A request that may set for how many idle seconds its model stays loaded: LM Studio's `ttl`."""

    ttl: Annotated[StrictInt, Field(ge=0, le=10**9)] | None = None

    @property
    def idle_limit(self) -> IdleLimit | None:
        return None if self.ttl is None else IdleLimit(float(self.ttl))


class WithWarnings(TypedDict, total=False):
    """An answer of a model; `warnings` say how the model lies in memory, and what of the request has no effect."""

    warnings: list[str]
