"""Sixty tools as people's servers describe them: repositories, chats, files, payments, clusters, calendars, browsers.

Written for this in the style of such servers, with what their schemas have: nesting, unions, enums, patterns, formats,
bounds, references, values that may be null. Owns the tools and how many more are made of them; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["TOOLS", "many_tools"]

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_COUNTRIES = [
    "AT", "BE", "BG", "BR", "CA", "CH", "CN", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR",
    "GB", "GR", "HR", "HU", "IE", "IN", "IS", "IT", "JP", "KR", "LT", "LU", "LV", "MT", "MX",
    "NL", "NO", "PL", "PT", "RO", "SE", "SI", "SK", "TR", "UA", "US", "ZA",
]  # fmt: skip
_CURRENCIES = ["usd", "eur", "gbp", "jpy", "chf", "sek", "nok", "dkk", "pln", "czk", "huf", "aud", "cad", "nzd", "inr"]


def _text(most: int = 0, least: int = 0, **more: Any) -> Schema:
    limits = {"minLength": least} if least else {}
    return {"type": "string", **limits, **({"maxLength": most} if most else {}), **more}


def _whole(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    limits = {} if least is None else {"minimum": least}
    return {"type": "integer", **limits, **({} if most is None else {"maximum": most}), **more}


def _one_of(*values: Any, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), **more}


def _list(items: Any, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _object(properties: Mapping[str, Any], required: str = "", **more: Any) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": required.split(), **more}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_OWNER = _text(39, 1, pattern="^[a-zA-Z0-9-]{1,39}$")
_REPOSITORY: Schema = {"owner": {"type": "string", "pattern": "^[a-zA-Z0-9-]{1,39}$"}, "repo": _text(100, 1)}
_PAGE: Schema = {"page": _whole(1), "per_page": _whole(1, 100, default=30)}
_PATH = _text(4096, 1, description="Absolute or relative path.")
_DATE: Schema = {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
_TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})$"}
_CLOSED: Schema = {"additionalProperties": False}

TOOLS: Mapping[str, Schema] = {
    # repositories
    "create_issue": _object(
        {**_REPOSITORY, "title": _text(256, 1), "body": _text(65536), "labels": _list(_text(50), maxItems=10),
         "assignees": _list(_text(39)), "milestone": _nullable(_whole(1))},
        "owner repo title",
    ),
    "list_issues": _object(
        {**_REPOSITORY, "state": _one_of("open", "closed", "all"), "sort": _one_of("created", "updated", "comments"),
         "direction": _one_of("asc", "desc"), "since": _TIME, **_PAGE},
        "owner repo", **_CLOSED,
    ),
    "create_pull_request": _object(
        {**_REPOSITORY, "title": _TEXT, "head": _TEXT, "base": _TEXT, "draft": _FLAG,
         "maintainer_can_modify": {"type": "boolean", "default": True}, "body": {"type": ["string", "null"]}},
        "owner repo title head base",
    ),
    "create_review": _object(
        {**_REPOSITORY, "pull_number": _whole(1), "event": _one_of("APPROVE", "REQUEST_CHANGES", "COMMENT"),
         "comments": _list(
             {"anyOf": [
                 _object({"path": _TEXT, "position": _whole(1), "body": _TEXT}, "path position body", **_CLOSED),
                 _object({"path": _TEXT, "line": _whole(1), "side": _one_of("LEFT", "RIGHT"), "body": _TEXT},
                         "path line body", **_CLOSED),
             ]}, maxItems=3)},
        "owner repo pull_number event",
    ),
    "push_files": _object(
        {**_REPOSITORY, "branch": _TEXT, "message": _text(500, 1),
         "files": _list(_object({"path": _TEXT, "content": _TEXT}, "path content"), minItems=1, maxItems=4)},
        "owner repo branch files message",
    ),
    "search_code": _object({"q": _text(256, 1), "order": _one_of("asc", "desc"), **_PAGE}, "q"),
    "get_commit": _object({**_REPOSITORY, "sha": {"type": "string", "pattern": "^[0-9a-f]{7,40}$"}}, "owner repo sha"),
    "update_branch_protection": _object(
        {**_REPOSITORY, "branch": _TEXT,
         "required_status_checks": _nullable(_object({"strict": _FLAG, "contexts": _list(_TEXT)}, "strict contexts")),
         "enforce_admins": {"type": ["boolean", "null"]},
         "restrictions": {"oneOf": [
             {"type": "null"}, _object({"users": _list(_TEXT), "teams": _list(_TEXT)}, "users")]}},
        "owner repo branch required_status_checks enforce_admins",
    ),
    # chats
    "slack_post_message": _object(
        {"channel_id": {"type": "string", "pattern": "^[CGD][A-Z0-9]{8,10}$"}, "text": _text(40000, 1),
         "thread_ts": {"type": "string", "pattern": r"^\d{10}\.\d{6}$"}, "mrkdwn": _FLAG},
        "channel_id text",
    ),
    "slack_add_reaction": _object(
        {"channel_id": _TEXT, "timestamp": _TEXT, "reaction": {"type": "string", "pattern": "^[a-z0-9_+-]+$"}},
        "channel_id timestamp reaction",
    ),
    "slack_get_channel_history": _object({"channel_id": _TEXT, "limit": _whole(1, 200, default=10)}, "channel_id"),
    "slack_send_blocks": _object(
        {"channel_id": _TEXT,
         "blocks": _list({"oneOf": [
             _object({"type": {"const": "divider"}}, "type", **_CLOSED),
             _object({"type": {"const": "header"}, "text": _text(150, 1)}, "type text", **_CLOSED),
             _object({"type": {"const": "section"}, "text": _object(
                 {"type": _one_of("plain_text", "mrkdwn"), "text": _text(3000, 1)}, "type text"),
                 "fields": _list(_text(2000), maxItems=3)}, "type text", **_CLOSED),
             _object({"type": {"const": "image"}, "image_url": {"type": "string", "format": "uri"}, "alt_text": _TEXT},
                     "type image_url alt_text", **_CLOSED),
         ]}, minItems=1, maxItems=4)},
        "channel_id blocks",
    ),
    "discord_create_thread": _object(
        {"channel": {"type": "string", "pattern": "^[0-9]{17,20}$"}, "name": _text(100, 1),
         "auto_archive_duration": {"type": "integer", "enum": [60, 1440, 4320, 10080]}, "invitable": _FLAG},
        "channel name",
    ),
    "send_email": _object(
        {"to": _list({"type": "string", "format": "email", "pattern": r"^[a-z0-9.]{1,20}@[a-z0-9]{1,20}\.[a-z]{2,6}$"},
                     minItems=1, maxItems=5),
         "cc": _list(_TEXT), "subject": _text(998), "body": _TEXT, "priority": _one_of("low", "normal", "high"),
         "attachments": _list(_object({"name": _TEXT, "content_base64": _TEXT}, "name content_base64"), maxItems=2)},
        "to subject body",
    ),
    # files
    "read_file": _object({"path": _TEXT, "head": {"type": "number"}, "tail": {"type": "number"}}, "path"),
    "read_multiple_files": _object({"paths": _list(_TEXT, minItems=1)}, "paths", **_CLOSED),
    "write_file": _object({"path": _PATH, "content": _TEXT}, "path content", **_CLOSED),
    "edit_file": _object(
        {"path": _TEXT, "edits": _list(_object({"oldText": _TEXT, "newText": _TEXT}, "oldText newText", **_CLOSED)),
         "dryRun": {"type": "boolean", "default": False}},
        "path edits", **_CLOSED,
    ),
    "list_directory_with_sizes": _object({"path": _TEXT, "sortBy": _one_of("name", "size")}, "path"),
    "search_files": _object(
        {"path": _TEXT, "pattern": _TEXT, "excludePatterns": _list(_TEXT, default=[])}, "path pattern"
    ),
    "directory_tree": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object({"path": _TEXT, "node": {"$ref": "#/$defs/node"}}, "path"),
        "$defs": {"node": _object({"name": _TEXT, "children": _list({"$ref": "#/$defs/node"}, maxItems=2)}, "name")},
    },
    "move_file": _object({"source": _TEXT, "destination": _TEXT, "overwrite": _FLAG}, "source destination"),
    "chmod": _object({"path": _TEXT, "mode": {"type": "string", "pattern": "^[0-7]{3,4}$"}}, "path mode"),
    "run_command": _object(
        {"command": _list(_TEXT, minItems=1, maxItems=8), "cwd": _TEXT, "timeout_ms": _whole(1, 600_000),
         "env": {"type": "object", "additionalProperties": _TEXT}},
        "command",
    ),
    "grep": _object(
        {"pattern": _TEXT, "glob": _TEXT, "-i": _FLAG, "-A": _whole(0, 100), "-B": _whole(0, 100),
         "output_mode": _one_of("content", "files_with_matches", "count"), "head_limit": {"type": "number"}},
        "pattern",
    ),
    "todo_write": _object(
        {"todos": _list(_object(
            {"content": _text(least=1), "status": _one_of("pending", "in_progress", "completed"), "id": _TEXT},
            "content status", **_CLOSED), maxItems=6)},
        "todos", **_CLOSED,
    ),
    # payments
    "create_customer": _object(
        {"name": _text(5000), "email": _text(512), "phone": _text(20), "metadata": {"type": "object"},
         "address": _object({"line1": _text(5000), "city": _text(5000), "country": _one_of(*_COUNTRIES),
                             "postal_code": {"type": "string", "pattern": "^[0-9A-Z -]{3,10}$"}}, "country"),
         "tax_exempt": {"enum": ["exempt", "none", "reverse", ""]}},
        "name",
    ),
    "create_payment_intent": _object(
        {"amount": _whole(1, 99_999_999), "currency": _one_of(*_CURRENCIES), "capture_method":
         _one_of("automatic", "automatic_async", "manual"), "description": _text(1000),
         "statement_descriptor": _text(22, 5), "off_session": {"anyOf": [_FLAG, _one_of("one_off", "recurring")]}},
        "amount currency",
    ),
    "create_refund": _object(
        {"charge": {"type": "string", "pattern": "^ch_[A-Za-z0-9]{8,24}$"}, "amount": _whole(1),
         "reason": _one_of("duplicate", "fraudulent", "requested_by_customer")},
        "charge",
    ),
    "create_price": _object(
        {"product": _TEXT, "unit_amount_decimal": {"type": "string", "pattern": r"^[0-9]{1,8}(\.[0-9]{1,12})?$"},
         "currency": _one_of(*_CURRENCIES),
         "recurring": _object({"interval": _one_of("day", "month", "week", "year"), "interval_count": _whole(1, 36)},
                              "interval"),
         "tiers": _list(_object({"up_to": {"anyOf": [{"const": "inf"}, _whole(1)]},
                                 "unit_amount": _whole(0)}, "up_to"), maxItems=4)},
        "product currency",
    ),
    "list_invoices": _object(
        {"customer": _TEXT, "status": _one_of("draft", "open", "paid", "uncollectible", "void"),
         "limit": _whole(1, 100),
         "created": {"anyOf": [_WHOLE, _object({"gt": _WHOLE, "gte": _WHOLE, "lt": _WHOLE, "lte": _WHOLE})]}},
    ),
    "create_coupon": _object(
        {"percent_off": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
         "duration": _one_of("forever", "once", "repeating"), "redeem_by": _whole(0)},
        "duration",
    ),
    # clusters
    "kubectl_scale": _object(
        {"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}, "namespace": _text(63, 1),
         "replicas": _whole(0, 1000), "resourceType": _one_of("deployment", "replicaset", "statefulset")},
        "name replicas",
    ),
    "kubectl_apply": _object(
        {"manifest": _object(
            {"apiVersion": {"const": "apps/v1"}, "kind": {"const": "Deployment"},
             "metadata": _object({"name": _TEXT, "labels": {"type": "object", "additionalProperties": _TEXT}}, "name"),
             "spec": _object({"replicas": _whole(0), "template": _object({"spec": _object({"containers": _list(
                 _object({"name": _TEXT, "image": _TEXT, "ports": _list(_object(
                     {"containerPort": _whole(1, 65535), "protocol": _one_of("TCP", "UDP", "SCTP")}, "containerPort"),
                     maxItems=2)}, "name image"), minItems=1, maxItems=2)}, "containers")}, "spec")}, "template")},
            "apiVersion kind metadata spec"),
         "dryRun": _FLAG},
        "manifest",
    ),
    "kubectl_logs": _object(
        {"pod": _TEXT, "container": _nullable(_TEXT), "tail": _whole(0, 10_000), "sinceTime": _TIME, "previous": _FLAG},
        "pod",
    ),
    "helm_upgrade": _object(
        {"release": _text(53, 1), "chart": _TEXT,
         "version": {"type": "string", "pattern": r"^v?\d{1,3}\.\d{1,3}\.\d{1,3}$"},
         "values": {"type": "object", "additionalProperties": True}, "atomic": _FLAG},
        "release chart",
    ),
    "terraform_plan": _object(
        {"directory": _TEXT, "variables": _list(_object({"key": _TEXT, "value":
         {"type": ["string", "number", "boolean", "null"]}}, "key value"), maxItems=4), "destroy": _FLAG},
        "directory",
    ),
    "docker_run": _object(
        {"image": _TEXT, "ports": {"type": "object", "additionalProperties": _whole(1, 65535)},
         "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]}, "memory":
         {"type": "string", "pattern": "^[0-9]{1,5}[kmg]$"}, "detach": {"type": "boolean", "default": True}},
        "image",
    ),
    # calendars
    "create_event": _object(
        {"summary": _text(1024, 1), "start": {"$ref": "#/definitions/moment"}, "end": {"$ref": "#/definitions/moment"},
         "attendees": _list(_object({"email": _TEXT, "optional": _FLAG}, "email"), maxItems=3),
         "recurrence": _list({"type": "string", "pattern": "^RRULE:FREQ=(DAILY|WEEKLY|MONTHLY);COUNT=[0-9]{1,3}$"}),
         "reminders": _object({"useDefault": _FLAG, "overrides": _list(_object(
             {"method": _one_of("email", "popup"), "minutes": _whole(0, 40320)}, "method minutes"), maxItems=5)})},
        "summary start end",
        definitions={"moment": {"oneOf": [_object({"date": _DATE}, "date", **_CLOSED),
                                          _object({"dateTime": _TIME, "timeZone": _TEXT}, "dateTime", **_CLOSED)]}},
    ),
    "find_free_time": _object(
        {"calendars": _list(_TEXT, minItems=1, maxItems=10), "duration_minutes": _whole(5, 1440, multipleOf=1),
         "after": _TIME, "before": _TIME},
        "calendars after before",
    ),
    "set_reminder": _object(
        {"text": _text(200, 1), "at": _TIME, "repeat": _nullable(_one_of("daily", "weekly"))}, "text at"
    ),
    "get_weather": _object(
        {"latitude": {"type": "number", "minimum": -90, "maximum": 90},
         "longitude": {"type": "number", "minimum": -180, "maximum": 180}, "units": _one_of("metric", "imperial")},
        "latitude longitude",
    ),
    "convert_time": _object(
        {"source_timezone": _TEXT, "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
         "target_timezone": _TEXT},
        "source_timezone time target_timezone",
    ),
    # databases
    "query": _object({"sql": _TEXT}),
    "sql_insert": _object(
        {"table": {"type": "string", "pattern": "^[a-z_][a-z0-9_]{0,62}$"}, "rows": _list(
            {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
            minItems=1, maxItems=3)},
        "table rows",
    ),
    "sql_select": _object(
        {"table": _TEXT, "columns": _list(_TEXT, minItems=1), "where": {"$ref": "#/$defs/condition"},
         "order_by": _list({"type": "array", "prefixItems": [_TEXT, {"enum": ["asc", "desc"]}]}, maxItems=3),
         "limit": _whole(1, 10_000)},
        "table",
        **{"$defs": {"condition": {"anyOf": [
            _object({"column": _TEXT, "op": _one_of("=", "!=", "<", ">", "like"), "value":
                     {"type": ["string", "number"]}}, "column op value", **_CLOSED),
            _object({"and": _list({"$ref": "#/$defs/condition"}, minItems=1, maxItems=2)}, "and", **_CLOSED),
            _object({"not": {"$ref": "#/$defs/condition"}}, "not", **_CLOSED),
        ]}}},
    ),
    "create_index": _object(
        {"collection": _TEXT, "keys": {"type": "object", "additionalProperties": {"enum": [1, -1, "text", "2dsphere"]}},
         "options": _object({"unique": _FLAG, "expireAfterSeconds": _whole(0)})},
        "collection keys",
    ),
    "redis_set": _object(
        {"key": _text(512, 1), "value": {"anyOf": [_TEXT, {"type": "number"}]}, "ttl": _nullable(_whole(1)),
         "mode": _one_of("NX", "XX")},
        "key value",
    ),
    "vector_search": _object(
        {"vector": _list({"type": "number", "minimum": -1, "maximum": 1}, minItems=3, maxItems=8),
         "top_k": _whole(1, 100), "filter": _nullable({"type": "object"}), "metric": _one_of("cosine", "l2", "dot")},
        "vector",
    ),
    # browsers and the net
    "browser_navigate": _object({"url": _text(format="uri", least=1)}, "url", **_CLOSED),
    "browser_click": _object(
        {"element": _TEXT, "ref": {"type": "string", "pattern": "^e[0-9]{1,6}$"}, "doubleClick": _FLAG,
         "button": _one_of("left", "right", "middle"), "modifiers": _list(_one_of("Alt", "Control", "Meta", "Shift"))},
        "element ref", **_CLOSED,
    ),
    "browser_fill_form": _object(
        {"fields": _list(_object({"name": _TEXT, "type": _one_of("textbox", "checkbox", "radio", "combobox", "slider"),
                                  "ref": _TEXT, "value": _TEXT}, "name type ref value", **_CLOSED), maxItems=4)},
        "fields", **_CLOSED,
    ),
    "browser_screenshot": _object(
        {"type": _one_of("png", "jpeg", default="png"), "filename": _TEXT, "fullPage": _FLAG,
         "clip": _object({name: {"type": "number", "minimum": 0} for name in ("x", "y", "width", "height")},
                         "x y width height")},
    ),
    "fetch": _object(
        {"url": {"type": "string", "minLength": 1, "format": "uri"},
         "max_length": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1_000_000, "default": 5000},
         "start_index": _whole(0, default=0), "raw": _FLAG},
        "url",
    ),
    "http_request": _object(
        {"method": _one_of("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"), "url": _TEXT, "headers":
         {"type": "object", "additionalProperties": {"anyOf": [_TEXT, _list(_TEXT)]}}, "body": {}},
        "method url",
    ),
    "web_search": _object(
        {"query": _text(400, 1), "count": _whole(1, 20), "freshness": {"anyOf": [_one_of("pd", "pw", "pm", "py"),
         {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}to\d{4}-\d{2}-\d{2}$"}]}, "country": _one_of(*_COUNTRIES)},
        "query",
    ),
    # and others
    "set_light": _object(
        {"entity_id": {"type": "string", "pattern": r"^light\.[a-z0-9_]{1,40}$"}, "brightness": _whole(0, 255),
         "color": {"oneOf": [_object({"rgb": _list(_whole(0, 255), minItems=3, maxItems=3)}, "rgb", **_CLOSED),
                             _object({"temperature": _whole(2000, 6500)}, "temperature", **_CLOSED)]}},
        "entity_id",
    ),
    "create_entities": _object(
        {"entities": _list(_object({"name": _TEXT, "entityType": _TEXT, "observations": _list(_TEXT)},
                                   "name entityType observations"), maxItems=3)},
        "entities",
    ),
    "sequential_thinking": _object(
        {"thought": _TEXT, "nextThoughtNeeded": _FLAG, "thoughtNumber": _whole(1), "totalThoughts": _whole(1),
         "isRevision": _FLAG, "branchId": _TEXT},
        "thought nextThoughtNeeded thoughtNumber totalThoughts",
    ),
    "ask_user": _object(
        {"questions": _list(_object(
            {"question": _TEXT, "header": _text(12), "multiSelect": _FLAG, "options": _list(_object(
                {"label": _TEXT, "description": _TEXT}, "label description", **_CLOSED), minItems=2, maxItems=4)},
            "question header options multiSelect", **_CLOSED), minItems=1, maxItems=2)},
        "questions", **_CLOSED,
    ),
    "ping": {"type": "object"},
}  # fmt: skip


def many_tools(n_tools: int) -> dict[str, Schema]:
    """Return `n_tools` tools, those above again and again under names of as many servers."""
    names = list(TOOLS)
    return {
        f"{names[index % len(names)]}{f'_{index // len(names)}' if index >= len(names) else ''}": TOOLS[
            names[index % len(names)]
        ]
        for index in range(n_tools)
    }
