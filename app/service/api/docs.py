"""/openapi.json, and /docs: one page of what is served, without scripts and without anything from a network.

Owns the page. Knows nothing of what the routes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse

from app.service.api.access import routes_of
from app.service.openapi import document
from app.service.streaming import JsonBytes

__all__ = ["page", "router"]

router = APIRouter(include_in_schema=False)

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "code{font-family:ui-monospace,monospace}summary{cursor:pointer}li{list-style:none}ul{padding-left:1.5em}"
)
_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document that tools read."""
    return JsonBytes(document(routes_of(request)))


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The page that people read."""
    return HTMLResponse(page(document(routes_of(request))), headers=_HEADERS)


def page(told: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    title = escape(f"{told['info']['title']} {told['info']['version']}")
    rows = "".join(_rows(told))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'{head}<h1>{title}</h1><p><a href="/openapi.json">openapi.json</a></p><ul>{rows}</ul></html>\n'


def _rows(told: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            name = f"<code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}"
            fields = _fields(told, operation)
            yield f"<li><details><summary>{name}</summary>{fields}</details></li>" if fields else f"<li>{name}</li>"


def _fields(told: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    """Return the names of what the body takes, those that have to be there marked."""
    if "requestBody" not in operation:
        return ""
    forms = _forms(told, operation["requestBody"]["content"]["application/json"]["schema"])
    required = set.intersection(*(set(form.get("required", ())) for form in forms))
    marks = {field: " *" if field in required else "" for form in forms for field in form["properties"]}
    return f"<ul>{''.join(f'<li><code>{escape(field)}</code>{mark}</li>' for field, mark in marks.items())}</ul>"


def _forms(told: Mapping[str, Any], reference: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schema that is referred to, or all that it may be one of."""
    schema = told["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    return [form for one in schema.get("oneOf", ()) for form in _forms(told, one)] or [schema]
