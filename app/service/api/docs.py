"""/openapi.json, and /docs: a page of all routes, without scripts and without anything from a network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.service.api.app_state import app_state
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse

router = Router(include_in_schema=False)

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "code{font-family:ui-monospace,monospace}summary{cursor:pointer}li{list-style:none}ul{padding-left:1.5em}"
)
_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return JsonResponse(await asyncio.to_thread(app_state(request).document))


@router.get("/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(page(await asyncio.to_thread(app_state(request).document)), headers=_HEADERS)


def page(document: Mapping[str, Any]) -> str:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    rows = ""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"<code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}"
            fields = _fields(document, operation)
            rows += f"<li><details><summary>{name}</summary>{fields}</details></li>" if fields else f"<li>{name}</li>"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'{head}<h1>{title}</h1><p><a href="/openapi.json">openapi.json</a></p><ul>{rows}</ul></html>\n'


def _fields(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    answers: Mapping[str, Any] = operation.get("responses", {})
    answer: Mapping[str, Any] = next(
        (each.get("content", {}) for status, each in answers.items() if status < "300"), {}
    )
    statuses = ", ".join(f"<code>{status}</code>" for status in answers if status >= "400")
    parts = {"Body": _names(document, body), "Answer": _names(document, answer), "Errors": statuses}
    return "".join(f"<div>{label} {names}</div>" for label, names in parts.items() if names)


def _names(document: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return the fields of a JSON object as a list; those that all of its forms have are marked."""
    forms = _forms(document, content.get("application/json", {}).get("schema", {}))
    if not forms:
        return ""
    required = set.intersection(*(set(form.get("required", ())) for form in forms))
    marks = {field: " *" if field in required else "" for form in forms for field in form["properties"]}
    return f"<ul>{''.join(f'<li><code>{escape(field)}</code>{mark}</li>' for field, mark in marks.items())}</ul>"


def _forms(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that a schema refers to, contains in a list, or is a union of."""
    if "$ref" in schema:
        return _forms(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    several = (*schema.get("oneOf", ()), *schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ()))
    return [form for one in several for form in _forms(document, one)] or ([schema] if "properties" in schema else [])
