"""The models as Anthropic's list has them, a page at a time.

Owns the fields, the bounds of a page, and which requests want this form. Knows nothing of HTTP but that header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.common.answer_text import NO_REASONING, reasoning_tags_of
from app.protocol.errors import RequestError
from app.service.generation.thinking import Thinking

VERSION_HEADER = "anthropic-version"  # every client of theirs sends it, and no other
DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class Supported(TypedDict):
    """Whether a model has a capability."""

    supported: bool


class EffortCapability(TypedDict):
    """Which levels of effort a model knows."""

    supported: bool
    low: Supported
    medium: Supported
    high: Supported
    max: Supported


class ThinkingTypes(TypedDict):
    """Which types of `thinking` are accepted."""

    adaptive: Supported
    between_tools: Supported
    disabled: Supported
    enabled: Supported


class ThinkingCapability(TypedDict):
    """Whether a model thinks."""

    supported: bool
    types: ThinkingTypes


class ServerTools(TypedDict):
    """The tools that the service itself would run."""

    supported: bool
    code_execution: Supported
    web_search: Supported


class Capabilities(TypedDict):
    """What a model is able to do (source: `ModelCapabilities` of Anthropic's SDK for Python, 2026)."""

    batch: Supported
    citations: Supported
    code_execution: Supported
    context_management: Supported
    effort: EffortCapability
    image_input: Supported
    pdf_input: Supported
    server_tools: ServerTools
    structured_outputs: Supported
    thinking: ThinkingCapability


class AnthropicModel(TypedDict):
    """A model that a request may name (source: `ModelInfo` of Anthropic's SDK for Python, 2026).

    `max_input_tokens` is the longest context of a model that has an engine, `capabilities` are those of a valid file.
    """

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NonNegativeInt | None
    max_tokens: NonNegativeInt | None
    capabilities: Capabilities | None
    deprecated_at: None
    retires_at: None
    line: None


class AnthropicModelList(TypedDict):
    """A page of models."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class Page:
    """The models right after `after_id`, or right before `before_id`, at most `limit`."""

    limit: int = DEFAULT_LIMIT
    after_id: str = ""
    before_id: str = ""

    @staticmethod
    def of_query(query: Mapping[str, str]) -> Page:
        """Return the page that a query asks for. Raises RequestError for a limit out of range."""
        text = query.get("limit", "") or str(DEFAULT_LIMIT)
        limit = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0
        if not 1 <= limit <= MAX_LIMIT:
            raise RequestError(f"limit is {text[:20]!r}.", f"Give a count from 1 to {MAX_LIMIT}.")
        return Page(limit, query.get("after_id", ""), query.get("before_id", ""))


def is_anthropic(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a client of Anthropic's API."""
    return VERSION_HEADER in headers


def capabilities(chat_template: str, *, sees: bool) -> Capabilities:
    """Return what a model with this chat template is able to do."""
    no, yes = Supported(supported=False), Supported(supported=True)
    thinks = reasoning_tags_of(chat_template, "") != NO_REASONING
    low, high = (Thinking(effort=effort).for_template(chat_template) for effort in ("low", "high"))
    level = Supported(supported=low != high)
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**level, "low": level, "medium": level, "high": level, "max": level},
        "image_input": Supported(supported=sees),
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {
            "supported": thinks,
            "types": {"adaptive": yes, "between_tools": yes, "disabled": yes, "enabled": yes},
        },
    }


def anthropic_model(
    model_id: str, created_s: int, n_ctx: int | None, able: Capabilities | None = None
) -> AnthropicModel:
    """Return the object of one model."""
    return {
        "type": "model",
        "id": model_id,
        "display_name": model_id,
        "created_at": datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
        "capabilities": able,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def model_page(models: Sequence[AnthropicModel], page: Page) -> AnthropicModelList:
    """Return a page of `models`. Raises RequestError for a cursor that is none of them."""
    ids = [model["id"] for model in models]
    if page.before_id:
        end = _index(ids, page.before_id)
        start = max(0, end - page.limit)
        has_more = start > 0
    else:
        start = _index(ids, page.after_id) + 1 if page.after_id else 0
        end = min(len(ids), start + page.limit)
        has_more = end < len(ids)
    data = list(models[start:end])
    edges = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "first_id": edges[0], "last_id": edges[1], "has_more": has_more}


def _index(ids: Sequence[str], cursor: str) -> int:
    if cursor not in ids:
        raise RequestError(f"There is no model {cursor[:100]!r} in the list.", "Use an id of the page before.")
    return ids.index(cursor)
