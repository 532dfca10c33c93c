"""What a server returns, as text: the results of calls, resources and prompts. Pure.

Models of a chat read text, so pictures and sounds become a line that says what was there. Nothing is cut here: the
runner bounds every output.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.tools.tool import ToolOutput

_BASE64_BYTES = 3 / 4


def result_output(raw: Mapping[str, Any]) -> ToolOutput:
    """Return the output of `raw`, the result of `tools/call`."""
    blocks = [block for block in _list(raw, "content") if isinstance(block, Mapping)]
    texts = list(map(_block_text, blocks))
    structured = raw.get("structuredContent")
    if structured is not None and not _is_said(structured, blocks):
        texts.append(json.dumps(structured, indent=1, ensure_ascii=False))
    is_error = raw.get("isError") is True
    return ToolOutput("\n".join(texts), is_error=is_error, detail=_detail(blocks, is_error=is_error))


def resource_text(raw: Mapping[str, Any]) -> str:
    """Return the text of `raw`, the result of `resources/read`."""
    return "\n".join(_resource(content) for content in _list(raw, "contents") if isinstance(content, Mapping))


def prompt_text(raw: Mapping[str, Any]) -> str:
    """Return the text of `raw`, the result of `prompts/get`: of several messages each with who says it."""
    messages = [message for message in _list(raw, "messages") if isinstance(message, Mapping)]
    texts = [(str(message.get("role", "")), _message(message)) for message in messages]
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"{role.capitalize()}: {text}" for role, text in texts)


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(_block_text(block) for block in blocks if isinstance(block, Mapping))


def _list(raw: Mapping[str, Any], key: str) -> Sequence[object]:
    value = raw.get(key)
    return value if isinstance(value, list) else ()


def _block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}: {_binary(block, 'data')}; this chat has only its description]"
    if kind == "resource_link":
        words = (block.get(key) for key in ("title", "name", "description", "mimeType"))
        about = ", ".join(dict.fromkeys(str(word) for word in words if word))
        return f"[resource: {block.get('uri', '')}{f' ({about})' if about else ''}]"
    if kind == "resource" and isinstance(block.get("resource"), Mapping):
        return _resource(block["resource"])
    return f"[content of the unknown kind {kind!r}]"


def _resource(resource: Mapping[str, Any]) -> str:
    uri = resource.get("uri", "")
    if "text" in resource:
        return f"[resource: {uri}]\n{resource['text']}"
    return f"[resource: {uri}, {_binary(resource, 'blob')}; this chat has only its description]"


def _binary(block: Mapping[str, Any], key: str) -> str:
    n_bytes = int(len(str(block.get(key, ""))) * _BASE64_BYTES)
    return f"{block.get('mimeType') or 'unknown type'}, {n_bytes:,} bytes"


def _is_said(structured: object, blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether texts say the structured content already, as servers write it for older clients: as JSON, or a
    single value as it is."""
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if isinstance(structured, Mapping) and len(structured) == 1 and "\n".join(texts) in structured.values():
        return True
    return any(_is_json_of(text, structured) for text in texts)


def _is_json_of(text: str, structured: object) -> bool:
    try:
        return bool(json.loads(text) == structured)
    except (ValueError, RecursionError):
        return False


def _detail(blocks: Sequence[Mapping[str, Any]], *, is_error: bool) -> str:
    parts = list(_counts(blocks))
    return ", ".join(["error reported by the tool", *parts] if is_error else parts)


def _counts(blocks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many parts there are that are no text."""
    for kind, n in Counter(str(block.get("type")) for block in blocks).items():
        if kind != "text":
            yield f"{n} × {kind.replace('_', ' ')}"
