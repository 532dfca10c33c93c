"""What a server lists and returns, made safe: tools, prompts and resources with bounds; results as text. Pure.

Everything here is untrusted text that a model will read: descriptions are cut and stripped of control characters, a
tool whose schema is huge, deep or refers elsewhere is left out, and a fingerprint changes when any of it does.

A server's name never has two underscores in a row, so the first `__` of a tool's name ends its server's: no two tools
of two servers have the same name. Pictures and sounds of a result go beside its text, in which a line stands for each;
the runner bounds every text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app.common.schema_shape import malformed_part
from app.common.terminal import printable, printable_line
from app.protocol.chat import MediaPart, Tool
from app.tools.mcp.config import ToolError
from app.tools.tool import MAX_MEDIA, MAX_MEDIA_BASE64, ServerTool, ToolOutput, media_names
from quantizer.system.errors import UsageError

MAX_LISTED = 200  # tools, prompts or resources of a server
_MAX_DESCRIPTION = 4_000  # characters
_MAX_TITLE = 200
_MAX_TOOL_NAME = 128
_MAX_URI = 2_000
_MAX_SCHEMA_CHARACTERS = 48_000
_MAX_SCHEMA_DEPTH = 24
_TEXT_KEYS = ("description", "title")
_DROPPED_KEYS = ("$schema", "$id", "$comment")  # nothing here needs them, and they cost context
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_N_NAMED = 3
_MAX_FAULT = 160  # characters


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of a server, and what was left out or cut ("" where nothing was)."""

    tools: tuple[ServerTool, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PromptArgument:
    name: str
    description: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    title: str = ""
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """Something to read that a server offers, by its URI."""

    uri: str
    name: str = ""
    title: str = ""
    description: str = ""
    mime_type: str = ""


def listed_tools(server: str, identity: str, raw: Sequence[object], timeout_s: float) -> ToolListing:
    """Return the tools of `raw`, the entries of `tools/list`. `identity` is what is started or reached."""
    usable: dict[str, Mapping[str, Any]] = {}
    left_out: dict[str, list[str]] = {}
    for entry in raw:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        reason = _fault(name, entry, usable) or (f"more than {MAX_LISTED}" if len(usable) >= MAX_LISTED else "")
        if reason:
            left_out.setdefault(reason, []).append(printable_line(str(name)[:40]))
        else:
            usable[str(name)] = entry  # type: ignore[assignment]  # one without a fault is a mapping
    names = tool_names(server, usable)
    prints = {name: _fingerprint(identity, entry) for name, entry in usable.items()}
    schemas = {name: {"type": "object", **_cleaned(entry["inputSchema"])} for name, entry in usable.items()}
    server_print = hashlib.sha256("".join(sorted(prints.values())).encode()).hexdigest()
    tools = tuple(
        ServerTool(
            server=server,
            name=name,
            definition=Tool(names[name], _description(entry), schemas[name]),
            title=_title(entry),
            timeout_s=timeout_s,
            fingerprint=prints[name],
            server_fingerprint=server_print,
        )
        for name, entry in usable.items()
    )
    return ToolListing(tools, _summary(left_out))


def listed_prompts(raw: Sequence[object]) -> tuple[Prompt, ...]:
    """Return the prompts of `raw`, the entries of `prompts/list`; those without a usable name are left out."""
    return tuple(
        Prompt(
            entry["name"],
            _title(entry),
            _description(entry),
            tuple(
                PromptArgument(each["name"], _description(each), each.get("required") is True)
                for each in _named(_list(entry, "arguments"), "name", _MAX_TOOL_NAME)
            ),
        )
        for entry in _named(raw, "name", _MAX_TOOL_NAME)
    )


def listed_resources(raw: Sequence[object]) -> tuple[Resource, ...]:
    """Return the resources of `raw`, the entries of `resources/list`; those without a usable URI are left out."""
    return tuple(
        Resource(entry["uri"], _line(entry, "name"), _title(entry), _description(entry), _line(entry, "mimeType"))
        for entry in _named(raw, "uri", _MAX_URI)
    )


def _named(raw: Sequence[object], key: str, max_characters: int) -> list[Mapping[str, Any]]:
    return [
        entry for entry in raw[:MAX_LISTED] if isinstance(entry, Mapping) and _is_name(entry.get(key), max_characters)
    ]


def _is_name(value: object, max_characters: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= max_characters and value == printable_line(value)


def _fault(name: object, entry: object, usable: Mapping[str, object]) -> str:
    """Return why a tool is left out, "" where it is not."""
    if not isinstance(entry, Mapping) or not _is_name(name, _MAX_TOOL_NAME):
        return "no usable name"
    if name in usable:
        return "listed twice"
    schema = entry.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return "no schema of an object"
    if _depth(schema) > _MAX_SCHEMA_DEPTH:
        return "a schema that is too deep"
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()  # Python's JSON reads NaN and halves of surrogate pairs, which no request may contain
    except ValueError:
        return "a schema that is not JSON"
    if len(text) > _MAX_SCHEMA_CHARACTERS:
        return "a schema that is too large"
    # a property may be called `$ref` too: then its value is no text
    if any(key in _REFERENCES and isinstance(to, str) and not to.startswith("#") for key, to in _items(schema)):
        return "a schema that refers to another document"
    if any(key != printable(key) for key, _ in _items(schema)):
        return "a schema with control characters in its names"
    if fault := malformed_part(schema):
        return f"a malformed schema: {fault[:_MAX_FAULT]}"
    return ""


def _depth(value: object) -> int:
    """Return how deeply `value` is nested, without recursion: what a server sends may be deeper than our stack."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        deepest = max(deepest, depth)
        if deepest > _MAX_SCHEMA_DEPTH:
            return deepest
        waiting.extend((child, depth + 1) for child in _children(item))
    return deepest


def _children(item: object) -> Sequence[object]:
    if isinstance(item, Mapping):
        return list(item.values())
    return item if isinstance(item, list) else ()


def _items(value: object) -> Iterator[tuple[str, object]]:
    """Yield each name with its value, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            yield from item.items()
        waiting.extend(_children(item))


def _cleaned(value: Any) -> Any:
    """Return part of a schema with its texts for people cut and printable; what validates stays as it is."""
    if isinstance(value, Mapping):
        return {
            key: printable(item)[:_MAX_DESCRIPTION] if key in _TEXT_KEYS and isinstance(item, str) else _cleaned(item)
            for key, item in value.items()
            if key not in _DROPPED_KEYS or not isinstance(item, str)
        }
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _description(entry: Mapping[str, Any]) -> str:
    value = entry.get("description")
    text = printable(value[: 4 * _MAX_DESCRIPTION]).strip() if isinstance(value, str) else ""
    if len(text) <= _MAX_DESCRIPTION:
        return text
    return f"{text[:_MAX_DESCRIPTION]} [{len(str(value)) - _MAX_DESCRIPTION:,} characters left out]"


def _line(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return printable_line(value[:_MAX_TITLE]) if isinstance(value, str) else ""


def _title(entry: Mapping[str, Any]) -> str:
    annotations = entry.get("annotations")
    return _line(entry, "title") or (_line(annotations, "title") if isinstance(annotations, Mapping) else "")


def _fingerprint(identity: str, entry: Mapping[str, Any]) -> str:
    """Return a hash of all that a person or model is shown of a tool, uncut, and of what is started for it."""
    shown = {key: entry.get(key) for key in ("name", "title", "description", "inputSchema", "annotations")}
    return hashlib.sha256(f"{identity}\n{json.dumps(shown, sort_keys=True)}".encode("utf-8", "replace")).hexdigest()


def _summary(left_out: Mapping[str, Sequence[str]]) -> str:
    """Return which tools are left out and why, the first few of each reason by name."""
    parts = []
    for reason, names in left_out.items():
        more = f" and {len(names) - _N_NAMED:,} more" if len(names) > _N_NAMED else ""
        parts.append(f"{', '.join(names[:_N_NAMED])}{more} ({reason})")
    return f"Tools left out: {'; '.join(parts)}." if parts else ""


MAX_NAME_CHARACTERS = 64
BUILT_IN_SERVERS = frozenset({"files", "commands", "web", "knowledge"})  # a chat's rules for these are about no other
_MAX_SERVER_CHARACTERS = 24
_N_HASH_CHARACTERS = 8


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Return, by the names in `mcp.json`, what models and the rules of chats call those servers."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name)).strip("_")
        short = plain[:_MAX_SERVER_CHARACTERS].strip("_") or "server"
        found[name] = _free(short, _MAX_SERVER_CHARACTERS, {*BUILT_IN_SERVERS, *found.values()})
    return found


def tool_names(server: str, names: Iterable[str]) -> dict[str, str]:
    """Return, by the names that `server` uses, what models call its tools: `server__tool`."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        full = f"{server}__{plain}"
        if len(full) > MAX_NAME_CHARACTERS:
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_N_HASH_CHARACTERS]
            full = f"{full[: MAX_NAME_CHARACTERS - _N_HASH_CHARACTERS - 1]}_{digest}"
        found[name] = _free(full, MAX_NAME_CHARACTERS, found.values())
    return found


def _free(name: str, max_characters: int, taken: Collection[str]) -> str:
    """Return `name`, or where it is taken with the first number that makes it unique."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        end = f"_{number}"
        candidate = name[: max_characters - len(end)].rstrip("_") + end
    return candidate


_BASE64_BYTES = 3 / 4


def result_output(raw: Mapping[str, Any]) -> ToolOutput:
    """Return the output of `raw`, the result of `tools/call`."""
    blocks = [block for block in _list(raw, "content") if isinstance(block, Mapping)]
    texts: list[str] = []
    media: list[MediaPart] = []
    for block in blocks:
        part = _medium(block)
        n_base64 = sum(len(each.base64) for each in media)
        if part is None or len(media) == MAX_MEDIA or n_base64 + len(part.base64) > MAX_MEDIA_BASE64:
            texts.append(block_text(block))
        else:
            media.append(part)
            of = f" of {block['resource'].get('uri', '')}" if block.get("type") == "resource" else ""
            texts.append(f"[{media_names(media)[-1]}{of}: {_size(part.mime_type, part.base64)}]")
    structured = raw.get("structuredContent")
    if structured is not None and not _is_said(structured, blocks):
        texts.append(json.dumps(structured, indent=1, ensure_ascii=False))
    is_error = raw.get("isError") is True
    details = ["error reported by the tool"] if is_error else []
    for kind, n in Counter(str(block.get("type")) for block in blocks).items():
        if kind != "text":
            details.append(f"{n} × {kind.replace('_', ' ')}")
    return ToolOutput("\n".join(texts), is_error=is_error, detail=", ".join(details), media=tuple(media))


def _medium(block: Mapping[str, Any]) -> MediaPart | None:
    """Return the picture or sound that a block says it has, None for any other."""
    kind, resource = block.get("type"), block.get("resource")
    if kind in ("image", "audio"):
        mime_type, data = _data(block, "data")
    elif kind == "resource" and isinstance(resource, Mapping):
        mime_type, data = _data(resource, "blob")
    else:
        return None
    return MediaPart(mime_type, data) if data and mime_type.startswith(("image/", "audio/")) else None


def resource_content(raw: Mapping[str, Any]) -> str | bytes:
    """Return what `raw`, the result of `resources/read`, has: the bytes of a file, or a text. Of several parts the
    text, each with where it is. Raises ToolError for bytes that are none."""
    contents = [content for content in _list(raw, "contents") if isinstance(content, Mapping)]
    if len(contents) != 1:
        return "\n".join(map(_resource, contents))
    if isinstance(text := contents[0].get("text"), str):
        return text
    try:
        return base64.b64decode(str(contents[0].get("blob", "")), validate=True)
    except ValueError as error:
        raise ToolError("The resource is neither text nor base64.") from error


def read_prompt_arguments(prompt: Prompt, text: str) -> dict[str, str]:
    """Return the arguments of a prompt as a person types them: NAME=VALUE, in quotes where a value has spaces; of a
    prompt with one argument its value alone. Raises UsageError that names what is wrong or missing."""
    names = [each.name for each in prompt.arguments]
    form = " ".join(f"{each.name}=…" if each.is_required else f"[{each.name}=…]" for each in prompt.arguments)
    usage = f"It takes: {form}" if names else "It takes no arguments."
    if len(names) == 1 and text and not text.startswith(f"{names[0]}="):
        return {names[0]: text}
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"The arguments of {prompt.name} have a quotation mark that is not closed.", usage) from error
    values = {name: value for name, sign, value in pairs if sign and name in names}
    missing = [each.name for each in prompt.arguments if each.is_required and not values.get(each.name)]
    if len(values) < len(pairs) or missing:
        is_other = len(values) < len(pairs)
        what = "does not take these arguments" if is_other else f"needs {', '.join(missing)}"
        raise UsageError(f"The prompt {prompt.name} {what}.", usage)
    return values


def prompt_text(raw: Mapping[str, Any]) -> str:
    """Return the text of `raw`, the result of `prompts/get`: of several messages each with who says it."""
    texts = []
    for message in (each for each in _list(raw, "messages") if isinstance(each, Mapping)):
        content = message.get("content")
        blocks = content if isinstance(content, list) else [content]
        text = "\n".join(block_text(block) for block in blocks if isinstance(block, Mapping))
        texts.append((str(message.get("role", "")), text))
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"{role.capitalize()}: {text}" for role, text in texts)


def _list(raw: Mapping[str, Any], key: str) -> Sequence[object]:
    value = raw.get(key)
    return value if isinstance(value, list) else ()


def block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}: {_size(*_data(block, 'data'))}; this chat has only its description]"
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
    return f"[resource: {uri}, {_size(*_data(resource, 'blob'))}; this chat has only its description]"


def _data(holder: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return the MIME type and the Base64 called `key` of a block or a resource, empty where it has none."""
    mime_type, data = holder.get("mimeType"), holder.get(key)
    return (mime_type if isinstance(mime_type, str) else ""), (data if isinstance(data, str) else "")


def _size(mime_type: str, data: str) -> str:
    return f"{mime_type or 'unknown type'}, {int(len(data) * _BASE64_BYTES):,} bytes"


def _is_said(structured: object, blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether texts say the structured content already, as servers write it for older clients: as JSON, or a
    single value as it is."""
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if isinstance(structured, Mapping) and len(structured) == 1 and "\n".join(texts) in structured.values():
        return True
    for text in texts:
        with suppress(ValueError, RecursionError):
            if json.loads(text) == structured:
                return True
    return False
