"""Anthropic's Messages API, as its reference and its SDKs (Python 2.14, JavaScript 1.14) have it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row, joined

_PATH = "POST /v1/messages"
_TYPES = "anthropic 2.14, anthropic/types"
_THREADS = f"{_TYPES}/beta/beta_message_thread_param.py; lib/threads"
_BETA = {"anthropic-beta": "message-threads-2026-08-12"}
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER = {"name": "weather", "input_schema": _CITY}
_USE = {"type": "tool_use", "id": "toolu_000000001", "name": "weather", "input": {"city": "Rome"}}
_CREATE = {"type": "create"}
_GO_ON = {"type": "continue", "previous_message_id": "${0.id}"}


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<say><tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call></say>"


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _ask(*messages: dict[str, Any], **fields: Any) -> Ask:
    body = {"model": MODEL, "max_tokens": 400, "messages": messages or [_user("hello")], **fields}
    return Ask(_PATH, {name: value for name, value in body.items() if value is not None}, _BETA)


_LONG = _call("weather", {"city": "Rome", "region": "x" * 300})
_ROME = _user(_call("weather", {"city": "Rome"}))
# Tools of a type: the name that a model calls, and what it may give.
_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_20250124": ("bash", {"command": "ls"}),
    "text_editor_20250728": ("str_replace_based_edit_tool", {"command": "view", "path": "/a.py", "view_range": [1, 2]}),
    "text_editor_20250124": ("str_replace_editor", {"command": "create", "path": "/a.py", "file_text": "x"}),
    "memory_20250818": ("memory", {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
    "computer_20251124": ("computer", {"action": "left_click", "coordinate": [3, 4]}),
}
_REFUSED: dict[str, tuple[Ask, str]] = {
    "no limit of tokens": (_ask(max_tokens=None), "max_tokens"),
    "a negative limit": (_ask(max_tokens=-1), "max_tokens"),
    "a temperature above 1": (_ask(temperature=2), "temperature"),
    "no message": (Ask(_PATH, {"model": MODEL, "max_tokens": 4, "messages": []}), "messages"),
    "a result without its call": (
        _ask(_user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]), tools=[_WEATHER]),
        "tool_use_id",
    ),
    "a tool without a schema": (_ask(tools=[{"name": "weather"}]), "input_schema"),
    "a set of tools for a screen": (_ask(tools=[{"type": "browser_toolset_20260801"}]), "browser_toolset"),
    "a change of the tools": (
        _ask({"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}, _user("hello")),
        "tool_addition",
    ),
}

ROWS: tuple[Row, ...] = (
    Row(
        name="a message is an object with its usage",
        ask=_ask(max_tokens=6),
        source="API reference, Create a Message",
        holds={"type": "message", "role": "assistant", "usage.output_tokens": int, "stop_reason": "max_tokens"},
    ),
    Row(
        name="a limit of 0 reads the prompt into the cache",
        ask=_ask(max_tokens=0),
        source=f"{_TYPES}/message_create_params.py, max_tokens",
        holds={"content": [], "stop_reason": "max_tokens", "usage.output_tokens": 0},
    ),
    *(
        Row(
            name=f"{what} is refused",
            ask=ask,
            source="API reference, Create a Message: invalid_request_error",
            status=400,
            holds={"type": "error", "error.type": "invalid_request_error", "error.message": re.compile(word)},
        )
        for what, (ask, word) in _REFUSED.items()
    ),
    Row(
        name="tokens are counted without a limit",
        ask=Ask("POST /v1/messages/count_tokens", {"model": MODEL, "messages": [_user("hello")]}),
        source="API reference, Count tokens in a Message",
        holds={"input_tokens": int},
    ),
    Row(
        name="a call that the limit cuts is the last block",
        ask=_ask(_user(_LONG), tools=[_WEATHER], max_tokens=110),
        source="Handling stop reasons: max_tokens with an incomplete tool_use block",
        scripted=True,
        holds={"stop_reason": "max_tokens", "content.-1.type": "tool_use", "content.-1.input": {"city": "Rome"}},
    ),
    Row(
        name="a call that the limit cuts is streamed",
        ask=_ask(_user(_LONG), tools=[_WEATHER], max_tokens=110, stream=True),
        source="Handling stop reasons: max_tokens with an incomplete tool_use block",
        scripted=True,
        holds={
            "[type=content_block_start].content_block.type": ["tool_use"],
            "[type=message_delta].delta.stop_reason": ["max_tokens"],
        },
    ),
    *(
        Row(
            name=f"{kind} is called by its known schema",
            ask=_ask(_user(_call(name, given)), tools=[{"type": kind, "name": name}], tool_choice={"type": "any"}),
            source=f"{_TYPES}/beta/beta_tool_union_param.py; the pages of the tools",
            scripted=True,
            holds={
                "stop_reason": "tool_use",
                "content.0.name": name,
                "content.0.input": given,
                "@x-localllm-warning": ABSENT,
            },
        )
        for kind, (name, given) in _KNOWN.items()
    ),
    Row(
        name="a search of the web is not offered",
        ask=_ask(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        source=f"{_TYPES}/beta/beta_web_search_tool_20250305_param.py",
        otherwise="tools that would run on a vendor's servers are named in `warnings`",
        ours={"warnings": re.compile(r"tools\.web_search")},
    ),
    Row(
        name="a thread goes on with the newest message alone",
        first=[_ask(_user("<say>Blue.</say>"), thread=_CREATE)],
        ask=_ask(_user("What was it?"), thread=_GO_ON),
        source=_THREADS,
        scripted=True,
        holds={"content.*.text": ["Blue."]},
    ),
    Row(
        name="a thread keeps the tools and the system text",
        first=[_ask(_ROME, thread=_CREATE, tools=[_WEATHER], system="Be kind.")],
        ask=_ask(
            _user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "${0.content.0.id}",
                        "content": _call("weather", {"city": "Oslo"}),
                    }
                ]
            ),
            thread=_GO_ON,
        ),
        source=_THREADS,
        scripted=True,
        holds={"content.*.name": ["weather"], "content.*.input.city": ["Oslo"]},
    ),
    Row(
        name="a streamed thread goes on",
        first=[
            _ask(_user("<say>Blue.</say>"), thread=_CREATE, stream=True),
            _ask(_user("And?"), thread={**_GO_ON, "previous_message_id": "${0.0.message.id}"}),
        ],
        ask=_ask(_user("What was it?"), thread={**_GO_ON, "previous_message_id": "${1.id}"}, stream=True),
        source=_THREADS,
        scripted=True,
        holds={"[type=content_block_delta].delta.text": joined("Blue.")},
    ),
    Row(
        name="the tokens of a thread are counted whole",
        first=[_ask(_user("x" * 500), thread=_CREATE, max_tokens=4)],
        ask=Ask("POST /v1/messages/count_tokens", {"model": MODEL, "messages": [_user("And?")], "thread": _GO_ON}),
        source=_THREADS,
        scripted=True,
        holds={"input_tokens": lambda n_tokens: n_tokens > 500},
    ),
    Row(
        name="an unknown thread is not found",
        ask=_ask(thread={"type": "continue", "previous_message_id": "msg_none"}),
        source=f"{_TYPES}/thread_not_found_error_details.py",
        status=404,
        holds={"error.type": "not_found_error", "error.details.error_code": "thread_not_found"},
    ),
    Row(
        name="a thread keeps its tools",
        first=[_ask(_user("hello"), thread=_CREATE, max_tokens=4)],
        ask=_ask(_user("And?"), thread=_GO_ON, tools=[_WEATHER]),
        source=f"{_TYPES}/thread_fingerprint_mismatch_error_details.py",
        status=400,
        holds={"error.details.error_code": "thread_fingerprint_mismatch"},
    ),
    Row(
        name="a thread goes on once from each answer",
        first=[_ask(_user("hello"), thread=_CREATE, max_tokens=4), _ask(_user("And?"), thread=_GO_ON, max_tokens=4)],
        ask=_ask(_user("And?"), thread=_GO_ON),
        source=f"{_TYPES}/thread_already_continued_error_details.py",
        status=400,
        holds={
            "error.type": "invalid_request_error",
            "error.details.error_code": "thread_already_continued",
        },
    ),
    Row(
        name="a thread that has gone on is counted from its latest answer",
        first=[_ask(_user("hello"), thread=_CREATE, max_tokens=4), _ask(_user("And?"), thread=_GO_ON, max_tokens=4)],
        ask=Ask("POST /v1/messages/count_tokens", {"model": MODEL, "messages": [_user("And?")], "thread": _GO_ON}),
        source=f"{_TYPES}/thread_already_continued_error_details.py",
        status=400,
        holds={"error.details.error_code": "thread_already_continued"},
    ),
    Row(
        name="a compaction is one block",
        ask=_ask(_user("<say>A summary.</say>"), compaction={"type": "summarize"}, tools=[_WEATHER]),
        source=f"{_TYPES}/beta/beta_compaction_config_param.py",
        scripted=True,
        holds={"stop_reason": "compaction", "content": [{"type": "compaction", "content": "A summary."}]},
    ),
    Row(
        name="a compaction is streamed",
        ask=_ask(_user("<say>A summary.</say>"), compaction={"type": "summarize"}, stream=True),
        source=f"{_TYPES}/beta/beta_compaction_content_block_delta.py",
        scripted=True,
        holds={
            "[type=content_block_start].content_block.type": ["compaction"],
            "[type=content_block_delta].delta.type": ["compaction_delta"],
            "[type=content_block_delta].delta.content": joined("A summary."),
            "[type=message_delta].delta.stop_reason": ["compaction"],
        },
    ),
    Row(
        name="a compaction goes first in the next messages",
        ask=_ask(
            {"role": "assistant", "content": [{"type": "compaction", "content": "<say>Blue.</say>"}]},
            _user("What was it?"),
        ),
        source=f"{_TYPES}/beta/beta_compaction_block_param.py",
        scripted=True,
        holds={"content.*.text": ["Blue."]},
    ),
    Row(
        name="nothing to summarise is refused by its code",
        ask=_ask({"role": "system", "content": "Be kind."}, compaction={"type": "summarize"}),
        source=f"{_TYPES}/compaction_nothing_to_summarize_error_details.py",
        status=400,
        holds={"error.details.error_code": "compaction_nothing_to_summarize"},
    ),
)
