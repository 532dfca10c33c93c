"""The field types that the bodies and objects of all dialects share, and which fields of a request have no effect.

Objects are TypedDicts: routes build their answers as plain dicts, so a type costs nothing at run time. The OpenAPI
document is made of them. A field that no body declares is reported to the client by its path in the request, unless
the tables here say that it is not worth a word.
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

from app.service.pool.engine_pool import IdleLimit

TokenIds: TypeAlias = list[StrictInt]
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]

MAX_PATHS = 64  # that are collected of one request
_ACCOUNTS = (  # of a vendor's servers: who asks, what is billed, what is cached
    *("user", "user_id", "metadata", "client_metadata", "safety_identifier", "store", "service_tier", "inference_geo"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control", "betas", "container"),
    *("usage", "provider", "stream_options.include_obfuscation"),
)
_ECHOES = (  # what an earlier answer had beside its text, and how clients number and label parts
    *("messages.id", "messages.type", "messages.status", "messages.created_at", "messages.model", "messages.name"),
    *("messages.stop_reason", "messages.stop_sequence", "messages.usage", "messages.refusal", "messages.annotations"),
    *("messages.audio", "messages.provider_specific_fields", "messages.function_call", "messages.tool_call_id"),
    *("tool_calls.type", "tool_calls.index", "function.index", "content.citations", "content.signature"),
    *("content.data", "content.is_error", "content.caller", "content.annotations", "content.logprobs"),
    *("content.source", "content.title", "content.context"),
    *("input.id", "input.status", "input.phase", "input.annotations", "output.annotations"),
    *("input.caller", "input.created_by", "input.environment", "input.execution", "input.max_output_length"),
)
_UNREADABLE = (  # of pictures, sounds and files, which the prompt describes in words
    *("content.image_url", "content.detail", "image_url.detail", "output.image_url", "output.detail"),
    *("content.input_audio", "content.video_url", "content.file_data", "content.file_id", "content.file_url"),
    *("output.file_data", "output.file_id", "output.file_url", "file.file_data", "file.file_id"),
)
_LABELS = (  # of schemas and tools, whose arguments follow their schema as far as a call is required
    *("strict", "json_schema.name", "json_schema.description", "format.name", "format.description"),
    *("tools.type", "tools.input_examples", "tools.eager_input_streaming", "tools.defer_loading", "tools.title"),
    *("tools.output_schema", "tools.async"),
    *("tools.annotations", "tools.outputSchema", "tools.items", "tools.enum"),
)
_LOADING = (  # and placing models, which the service decides; a context grows where a request needs it
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram", "numa"),
    *("vocab_only", "f16_kv", "embedding_only"),
)
_SPEED = (  # of llama-server: the cache, slots and drafts that it would use
    *("cache_prompt", "id_slot", "slot_id", "n_cache_reuse", "t_max_prompt_ms", "prediction"),
    *("guided_decoding_backend",),  # vLLM's library that holds an answer to its form
    *("speculative.n_min", "speculative.p_min", "backend_sampling", "input_extra.time"),
)
_CONTEXT = ("context_management", "truncate", "shift")  # which is never cut here
_HARMLESS = frozenset((*_ACCOUNTS, *_ECHOES, *_UNREADABLE, *_LABELS, *_LOADING, *_SPEED, *_CONTEXT))
# Values that ask for what happens anyway.
_NEUTRAL: Mapping[str, Any] = {
    "best_of": 1,
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "tfs_z": 1,
    "truncation": "disabled",
    "verbosity": "medium",
}
# The order of samplers here (see `app.engine.loop.sampling`), as llama-server calls them.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "infill")


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
        that are empty, zero or false ask for nothing."""
        paths: dict[str, None] = {}
        for path in _unknown(self, fields, ""):
            paths[path] = None
            if len(paths) == MAX_PATHS:
                break
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
        if not value:
            continue
        if name not in known:
            if not _is_harmless(prefix, name, value):
                yield prefix + name
        elif type(value) in (dict, list):
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


def _is_harmless(prefix: str, name: str, value: Any) -> bool:
    place = prefix.split(".")[-2] if prefix else ""
    if name == "samplers":  # llama.vim sends a list of them: any part in the order of this engine changes nothing
        usual = iter(SAMPLERS)
        return isinstance(value, list) and all(sampler in usual for sampler in value)
    return name in _HARMLESS or f"{place}.{name}" in _HARMLESS or (name in _NEUTRAL and value == _NEUTRAL[name])


class TtlBody(Body):
    """A request that may set for how many idle seconds its model stays loaded: LM Studio's `ttl`."""

    ttl: Annotated[StrictInt, Field(ge=0, le=10**9)] | None = None

    @property
    def idle_limit(self) -> IdleLimit | None:
        return None if self.ttl is None else IdleLimit(float(self.ttl))


class WithWarnings(TypedDict, total=False):
    """An answer of a model; `warnings` say how the model lies in memory, and what of the request has no effect."""

    warnings: list[str]
