"""The field types that the bodies and objects of all dialects share, and which fields of a request have no effect.

Objects are TypedDicts: routes build their answers as plain dicts, so a type costs nothing at run time. The OpenAPI
document is made of them. What becomes of a field that no body declares is in `unread_fields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictInt,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic accepts no other before Python 3.12

from app.service.api.unread_fields import is_told
from app.service.pool.engine_pool import IdleLimit

TokenIds: TypeAlias = list[StrictInt]
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]

MAX_PATHS = 64  # that are collected of one request


class Body(BaseModel):
    """An object of a request. Unknown fields are ignored, and reported by `ignored_fields`."""

    # Validators are built when the first body comes: those of all dialects at once take a sixth of the start.
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    @property
    def unused(self) -> str:
        """What a client calls this object where all of it has no effect, else ""."""
        return ""

    def ignored_fields(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths of what has no effect in `fields`, of which this body was made: each once, in order. Fields
        that are empty, zero or false ask for nothing. Raises RequestError for a field that would change the answer."""
        paths: dict[str, None] = {}
        for path in _unknown(self, fields, ""):
            if len(paths) < MAX_PATHS:  # those behind may still be refused
                paths[path] = None
        return tuple(paths)


class RawBody(Body):
    """An object of a request that is answered with, or stored, as it was sent."""

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        parsed = parse(value)
        if isinstance(value, dict):
            parsed._raw = value  # noqa: SLF001  (its own)
        return parsed

    @property
    def raw(self) -> dict[str, Any]:
        return self._raw


def _unknown(body: Body, fields: Mapping[str, Any], prefix: str) -> Iterator[str]:
    known = _known_fields(type(body))
    for name, value in fields.items():
        if name not in known:
            if is_told(prefix + name, value):
                yield prefix + name
        elif value and type(value) in (dict, list):
            yield from _inside(getattr(body, known[name]), value, f"{prefix}{name}.")


def _inside(parsed: object, value: Any, prefix: str) -> Iterator[str]:
    if isinstance(parsed, Body) and isinstance(value, dict):
        if parsed.unused:
            yield prefix + parsed.unused
        else:
            yield from _unknown(parsed, value, prefix)
    elif isinstance(parsed, list) and isinstance(value, list):
        for item, item_value in zip(parsed, value, strict=False):
            yield from _inside(item, item_value, prefix)


@cache  # of some fifty types; long conversations have thousands of objects
def _known_fields(kind: type[BaseModel]) -> Mapping[str, str]:
    return {field.alias or name: name for name, field in kind.model_fields.items()}


class TtlBody(Body):
    """A request that may set for how many idle seconds its model stays loaded: LM Studio's `ttl`."""

    ttl: Annotated[StrictInt, Field(ge=0, le=10**9)] | None = None

    @property
    def idle_limit(self) -> IdleLimit | None:
        return None if self.ttl is None else IdleLimit(float(self.ttl))


class WithWarnings(TypedDict, total=False):
    """An answer of a model; `warnings` say how the model lies in memory, and what of the request has no effect."""

    warnings: list[str]
