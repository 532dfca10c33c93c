"""What an MCP server asks the person to fill in, as a form of the editor, and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from acp.schema import CreateFormSessionElicitationRequest, ElicitationSchema

from app.tools.server_requests import Form, FormField, FormValue, WrongFieldError

_BOUNDS = {"text": ("minLength", "maxLength"), "choices": ("minItems", "maxItems")}
_TYPES = {"text": "string", "choice": "string", "choices": "array", "yes or no": "boolean"}


def form_request(session_id: str, form: Form) -> CreateFormSessionElicitationRequest:
    schema = {
        "type": "object",
        "properties": {field.name: _property(field) for field in form.fields},
        "required": [field.name for field in form.fields if field.is_required],
    }
    return CreateFormSessionElicitationRequest(
        session_id=session_id,
        mode="form",
        message=f"{form.server}: {form.message}",
        requested_schema=ElicitationSchema.model_validate(schema),
    )


def form_values(form: Form, content: Mapping[str, Any]) -> Mapping[str, FormValue] | None:
    """Return what was filled in; None where a field does not take it, which an editor should have said."""
    try:
        return form.values_of({name: _typed(value) for name, value in content.items()})
    except WrongFieldError:
        return None


def _typed(value: object) -> str:
    """Return a value as a person types it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _property(field: FormField) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _TYPES.get(field.kind, field.kind), "title": field.title}
    if field.description:
        found["description"] = field.description
    least, most = _BOUNDS.get(field.kind, ("minimum", "maximum"))
    found |= {key: bound for key, bound in ((least, field.least), (most, field.most)) if math.isfinite(bound)}
    options = [{"const": value, "title": name} for value, name in field.options.items()]
    if field.kind == "choices":
        found["items"] = {"anyOf": options}
    elif field.kind == "choice":
        found["oneOf"] = options
    elif field.kind == "text" and field.default:
        found["default"] = field.default
    return found
