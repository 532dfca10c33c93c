"""A server of MCP over stdio with one tool, `read_note`, which answers with the text that is its only argument."""

from __future__ import annotations

import json
import sys
from typing import Any

_TOOL = {
    "name": "read_note",
    "description": "Read a note.",
    "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


def _result(method: str, params: dict[str, Any], note: str) -> dict[str, Any]:
    if method == "initialize":
        server = {"name": "notes", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [_TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": note}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = _result(message["method"], message.get("params", {}), sys.argv[1])
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
