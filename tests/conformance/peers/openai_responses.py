"""OpenAI's Responses API, as the types of openai 3.57 and the requests of Codex 0.171 have it."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row

_PATH = "POST /v1/responses"
_TYPES = "openai 3.57, openai/types/responses"
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": _CITY, "strict": False}
_SERVER = {"type": "namespace", "name": "mcp__sky", "description": "About the sky.", "tools": [_WEATHER]}
_OTHER = {**_SERVER, "name": "mcp__sea"}
_SHELL = {"type": "shell", "environment": {"type": "local"}}
_PATCH = {"type": "apply_patch"}
_DIFF = {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y\n"}
_SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
_REGEX = {"type": "custom", "name": "pick", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}}
_LARK = {"type": "custom", "name": "edit", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}
_CALL = "output.[type={}]"


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _says(text: str) -> str:
    return f"<say>{text}</say>"


def _ask(**fields: Any) -> Ask:
    return Ask(_PATH, {"model": MODEL, "input": "hello", "max_output_tokens": 400, "store": False, **fields})


def _after(*items: dict[str, Any], **fields: Any) -> Ask:
    """Return a request whose conversation has `items` between two questions."""
    question = {"role": "user", "content": "hello"}
    return _ask(input=[question, *items, {"role": "user", "content": _says("Seen.")}], **fields)


_FOREIGN: dict[str, dict[str, Any]] = {
    "web_search_call": {"status": "completed", "action": {"type": "search", "query": "x"}},
    "file_search_call": {"status": "completed", "queries": ["x"], "results": None},
    "image_generation_call": {"status": "completed", "result": "aGk="},
    "code_interpreter_call": {"status": "completed", "code": "1", "container_id": "c", "outputs": []},
    "computer_call": {"call_id": "c", "status": "completed", "pending_safety_checks": [], "action": {"type": "wait"}},
    "computer_call_output": {"call_id": "c", "output": {"type": "computer_screenshot", "image_url": "x"}},
    "mcp_list_tools": {"server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
    "mcp_call": {"server_label": "s", "name": "t", "arguments": "{}", "output": "x"},
    "mcp_approval_request": {"server_label": "s", "name": "t", "arguments": "{}"},
    "mcp_approval_response": {"approval_request_id": "x", "approve": True},
    "program": {"call_id": "c", "code": "1", "fingerprint": "x"},
    "program_output": {"call_id": "c", "result": "1", "status": "completed"},
    "compaction": {"encrypted_content": "x"},
}
_OURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shell_call": (
        {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        {"output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    ),
    "local_shell_call": ({"action": {"type": "exec", "command": ["ls"], "env": {}}}, {"id": "c1", "output": "a.py"}),
    "apply_patch_call": ({"operation": _DIFF}, {"status": "completed"}),
    "function_call": ({"name": "weather", "namespace": "mcp__sky", "arguments": "{}"}, {"output": "sun"}),
    "custom_tool_call": ({"name": "edit", "input": "x"}, {"output": "done"}),
}

_BODY = json.dumps({"input": "hello", "max_output_tokens": 4}).encode()
_MIB = 1 << 20
_ZSTD = (
    b"\x28\xb5\x2f\xfd\x20" + bytes([len(_BODY), 1 | len(_BODY) << 3 & 0xFF, len(_BODY) >> 5, 0]) + _BODY
)  # one raw block


def _bomb() -> bytes:
    """Return the beginning of a stream of gzip that is 66 MiB once it is decoded."""
    compressor = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    first, again = (compressor.compress(b" " * _MIB) + compressor.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 65 * again


# Bodies with a Content-Encoding, and the status of each.
_ENCODED: dict[str, tuple[bytes, int]] = {
    "gzip": (gzip.compress(_BODY), 200),
    "deflate": (zlib.compress(_BODY), 200),
    "deflate, gzip": (gzip.compress(zlib.compress(_BODY)), 200),
    "identity": (_BODY, 200),
    "br": (_BODY, 415),
    "GZIP": (gzip.compress(_BODY)[:-9], 400),
    "x-gzip": (_bomb(), 413),
}

ROWS: tuple[Row, ...] = (
    Row(
        name="a function of a namespace is called by its name and namespace",
        ask=_ask(input=_says(_call("mcp__sky__weather", {"city": "Rome"})), tools=[_SERVER, _OTHER]),
        source="Codex 0.171 with an MCP server; response_function_tool_call.py",
        scripted=True,
        holds={
            "output.0.type": "function_call",
            "output.0.name": "weather",
            "output.0.namespace": "mcp__sky",
            "output.0.arguments": '{"city": "Rome"}',
            "@x-localllm-warning": ABSENT,
        },
    ),
    Row(
        name="the stream of such a call has name and namespace too",
        ask=_ask(input=_says(_call("mcp__sky__weather", {"city": "Rome"})), tools=[_SERVER], stream=True),
        source="Codex 0.171 with an MCP server",
        scripted=True,
        holds={
            "[type=response.output_item.done].item.namespace": ["mcp__sky"],
            "[type=response.function_call_arguments.done].name": ["weather"],
        },
    ),
    Row(
        name="a call is required of namespaces alone",
        ask=_ask(input=_says(_call("mcp__sky__weather", {"city": "Rome"})), tools=[_SERVER], tool_choice="required"),
        source=f"{_TYPES}/namespace_tool_param.py",
        holds={"output.[type=function_call].name": ["weather"]},
        scripted=True,
    ),
    Row(
        name="tool_choice names a function of a namespace",
        ask=_ask(
            input=_says(_call("mcp__sky__weather", {"city": "Rome"})),
            tools=[_SERVER],
            tool_choice={"type": "function", "name": "weather"},
        ),
        source=f"{_TYPES}/tool_choice_function_param.py",
        holds={"output.[type=function_call].name": ["weather"]},
        scripted=True,
    ),
    *(
        Row(
            name=f"a {kind} of a session begun elsewhere is skipped",
            ask=_after({"type": kind, "id": "x1", **fields}),
            source=f"{_TYPES}/response_input_item_param.py",
            holds={"status": "completed"},
        )
        for kind, fields in _FOREIGN.items()
    ),
    *(
        Row(
            name=f"a {kind} and its result come back",
            ask=_after(
                {"type": kind, "call_id": "c1", "status": "completed", **call},
                {"type": f"{kind}_output", "call_id": "c1", **result},
            ),
            source=f"{_TYPES}/response_input_item_param.py",
            holds={"status": "completed", "@x-localllm-warning": ABSENT},
        )
        for kind, (call, result) in _OURS.items()
    ),
    Row(
        name="a shell with a local environment is the client's",
        ask=_ask(input=_says(_call("shell", {"commands": ["ls"], "timeout_ms": 100})), tools=[_SHELL]),
        source=f"{_TYPES}/response_function_shell_tool_call.py; openai-agents 0.24, ShellTool",
        scripted=True,
        holds={
            "output.0.type": "shell_call",
            "output.0.action.commands": ["ls"],
            "output.0.action.timeout_ms": 100,
            "output.0.status": "completed",
            "@x-localllm-warning": ABSENT,
        },
    ),
    Row(
        name="a shell in OpenAI's container is not offered",
        ask=_ask(tools=[{"type": "shell", "environment": {"type": "container_auto"}}]),
        source=f"{_TYPES}/function_shell_tool_param.py",
        holds={"status": str},
        otherwise="tools that would run on a vendor's servers are named in `warnings`",
        ours={"warnings": re.compile(r"tools\.shell")},
    ),
    Row(
        name="a command for the local shell",
        ask=_ask(input=_says(_call("local_shell", {"command": ["ls", "-l"]})), tools=[{"type": "local_shell"}]),
        source=f"{_TYPES}/response_output_item.py",
        scripted=True,
        holds={"output.0.type": "local_shell_call", "output.0.action.command": ["ls", "-l"]},
    ),
    Row(
        name="a patch is an operation",
        ask=_ask(input=_says(_call("apply_patch", _DIFF)), tools=[_PATCH], tool_choice={"type": "apply_patch"}),
        source=f"{_TYPES}/response_apply_patch_tool_call.py",
        scripted=True,
        holds={"output.0.type": "apply_patch_call", "output.0.operation": _DIFF, "output.0.status": "completed"},
    ),
    Row(
        name="a search for tools that the client runs",
        ask=_ask(input=_says(_call("tool_search", {"query": "sky"})), tools=[_SEARCH]),
        source=f"{_TYPES}/response_tool_search_call.py",
        scripted=True,
        holds={"output.0.type": "tool_search_call", "output.0.execution": "client", "output.0.arguments.query": "sky"},
    ),
    Row(
        name="the tools that a search found can be called",
        ask=_ask(
            input=[
                {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "sky"}},
                {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [_SERVER]},
                {"role": "user", "content": _says(_call("mcp__sky__weather", {"city": "Rome"}))},
            ],
            tools=[_SEARCH],
        ),
        source=f"{_TYPES}/response_tool_search_output_item_param_param.py",
        scripted=True,
        holds={"output.0.type": "function_call", "output.0.namespace": "mcp__sky"},
    ),
    Row(
        name="tools that a developer adds in the input can be called",
        ask=_ask(
            input=[
                {"type": "additional_tools", "role": "developer", "tools": [_WEATHER]},
                {"role": "user", "content": _says(_call("weather", {"city": "Rome"}))},
            ],
        ),
        source=f"{_TYPES}/response_input_item_param.py, AdditionalTools",
        scripted=True,
        holds={"output.0.type": "function_call", "output.0.name": "weather"},
    ),
    Row(
        name="a screen that only the client sees is refused",
        ask=_ask(tools=[{"type": "computer"}]),
        source=f"{_TYPES}/computer_tool_param.py; OpenAI's models that were not made for it answer 400",
        status=400,
    ),
    Row(
        name="a grammar of an input that is not enforced is named",
        ask=_ask(tools=[_LARK]),
        source=f"{_TYPES}/custom_tool_input_format.py",
        holds={"status": str},
        otherwise="a grammar in Lark is shown to the model and named in `warnings`",
        ours={"warnings": re.compile("edit")},
    ),
    Row(
        name="a regular expression of an input is enforced without a warning",
        ask=_ask(tools=[_REGEX]),
        source=f"{_TYPES}/custom_tool_input_format.py",
        holds={"@x-localllm-warning": ABSENT},
    ),
    Row(
        name="a custom tool's input that the limit cuts has no wrapper",
        ask=_ask(
            input=_says(_call("edit", {"input": "x" * 300})), tools=[{**_LARK, "format": None}], max_output_tokens=90
        ),
        source="OpenAI's reference, custom_tool_call",
        scripted=True,
        holds={"status": "incomplete", "output.0.status": "incomplete", "output.0.input": re.compile("^x+$")},
    ),
    Row(
        name="commands that the limit cuts are not run",
        ask=_ask(input=_says(_call("shell", {"commands": ["ls", "x" * 300]})), tools=[_SHELL], max_output_tokens=90),
        source="a client runs what an item has",
        scripted=True,
        holds={"status": "incomplete", "output.0.status": "incomplete", "output.0.action.commands": []},
    ),
    Row(
        name="a compaction is the user's messages and one item",
        ask=Ask(
            "POST /v1/responses/compact",
            {
                "model": MODEL,
                "input": [
                    {"role": "user", "content": _says("A summary.")},
                    {"role": "assistant", "content": "One."},
                    {"role": "user", "content": "Two."},
                ],
            },
        ),
        source=f"{_TYPES}/compacted_response.py",
        holds={
            "object": "response.compaction",
            "output.*.type": ["message", "message", "compaction"],
            "output.-1.encrypted_content": str,
            "usage.total_tokens": int,
        },
    ),
    Row(
        name="a compaction goes first in the next input",
        first=[
            Ask("POST /v1/responses/compact", {"model": MODEL, "input": _says("It is <say>Rome.</say>")}),
        ],
        ask=_ask(input=["${0.output.-1}", {"role": "user", "content": "Where?</say>"}]),
        source=f"{_TYPES}/response_compaction_item_param.py",
        scripted=True,
        holds={"output.0.content.0.text": re.compile(r"^Rome\."), "@x-localllm-warning": ABSENT},
    ),
    *(
        Row(
            name=f"a body with the encoding {encoding} is answered with {status}",
            ask=Ask(_PATH, body, {"content-encoding": encoding, "content-type": "application/json"}),
            source="RFC 9110, 8.4 and 15.5.16; the SDKs compress large requests",
            status=status,
        )
        for encoding, (body, status) in _ENCODED.items()
    ),
    Row(
        name="a body in zstd is decoded",
        ask=Ask(_PATH, _ZSTD, {"content-encoding": "zstd", "content-type": "application/json"}),
        source="Codex 0.171 at OpenAI's own service (enable_request_compression)",
        otherwise="A request compressed with zstd is a 415",
        our_status=415,
        ours={"error.code": "request_body_encoding_unsupported"},
    ),
    Row(
        name="Codex reads its catalogue from the list of models",
        ask=Ask("GET /v1/models?client_version=0.171.0"),
        source="Codex 0.171 with model_catalog_url; the catalogue in its program",
        scripted=True,
        holds={
            "models.0.slug": "tiny",
            "models.0.context_window": int,
            "models.0.input_modalities": ["text"],
            "models.0.base_instructions": str,
            "data.0.id": "tiny",
        },
    ),
)
