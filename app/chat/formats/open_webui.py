"""Open WebUI's export.

Owns where it stores the tree, the system prompt, the reasoning, calls of tools with their results (within the text of
an answer), and pictures (data URLs); other files are elsewhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from app.chat.conversation import Attachment, Chat, ChatSettings, MessageContent, Role
from app.chat.formats.json_reader import ImportedChat, JsonField, SkippedItem, TreeNode, import_tree
from app.chat.formats.media import ImportedMedia
from app.protocol.chat import ToolCall
from app.tools.result import ToolOutcome, ToolResult

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING_BEGINS = '<details type="reasoning"'
_CALL_BEGINS, _ENDS = '<details type="tool_calls"', "</details>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def is_open_webui(chat: JsonField) -> bool:
    """Return whether this is a chat of such an export, with or without the list's wrapper."""
    return _inner(chat).at("history").at("messages").is_given


def read_open_webui(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for an invalid value."""
    inner = _inner(chat)
    history = inner.at("history")
    media = ImportedMedia()
    messages = history.at("messages").entries()
    nodes = {name: part for key, node in messages for name, part in _parts(key, _node(node, media))}
    header = Chat(
        id=1,
        title=chat.at("title").text() or inner.at("title").text(),
        model=next((model.text() for model in inner.at("models").items()), ""),
        settings=ChatSettings(inner.at("params").at("system").text() or inner.at("system").text()),
        created_ms=chat.at("created_at").moment_ms() or inner.at("timestamp").moment_ms(),
        updated_ms=chat.at("updated_at").moment_ms(),
        is_pinned=chat.at("pinned").flag(),
        is_archived=chat.at("archived").flag(),
    )
    transcript, unreached = import_tree(header, nodes, history.at("currentId").text(), chat.place)
    unread = [SkippedItem(f"{history.place}.messages.{key}", "belongs to no branch") for key in unreached]
    return ImportedChat(transcript, (*media.skipped, *unread), media.contents)


def _inner(chat: JsonField) -> JsonField:
    return chat.at("chat") if chat.at("chat").is_given else chat


def _node(node: JsonField, media: ImportedMedia) -> TreeNode:
    parent = node.at("parentId").text() or None
    role = _ROLES.get(node.at("role").text())
    if role is None:
        media.skipped.append(SkippedItem(node.place, f"has an unknown role: {node.at('role').text()}"))
        return TreeNode(parent, None)
    message = MessageContent(
        role=role,
        content=node.at("content").text(),
        attachments=tuple(each for file in node.at("files").items() for each in _attachments(file, media)),
        model=node.at("model").text(),
        created_ms=node.at("timestamp").moment_ms(),
    )
    return TreeNode(parent, message)


def _parts(key: str, node: TreeNode) -> Iterator[tuple[str, TreeNode]]:
    """Yield the messages that one node is, in their order: an answer with calls, its results, and what follows. The
    last has the node's key, which its children name."""
    if node.message is None:
        yield key, node
        return
    parts = [*_messages(node.message)]
    parent = node.parent
    for number, message in enumerate(parts, 1):
        name = key if number == len(parts) else f"{key}, part {number}"
        yield name, TreeNode(parent, message)
        parent = name


def _messages(message: MessageContent) -> Iterator[MessageContent]:
    """Yield an answer with the calls in its text as messages of their own; another message only loses its reasoning."""
    if message.role != "assistant" or _CALL_BEGINS not in message.content:
        yield _spoken(message, message.content, ())
        return
    text = ""
    calls: list[ToolCall] = []
    results: list[MessageContent] = []
    for before, attributes in _pieces(message.content):
        if before.strip() and calls:
            yield _spoken(message, text, tuple(calls))
            yield from results
            message, text, calls, results = replace(message, attachments=()), "", [], []
        text += before.strip()
        if attributes is not None:
            call, result = _call(attributes, len(calls))
            calls.append(call)
            results += [result] if result else []
    yield _spoken(message, text, tuple(calls))
    yield from results


def _pieces(content: str) -> Iterator[tuple[str, str | None]]:
    """Yield each text before a call with the call's attributes, and the rest with None."""
    begin = 0
    while (start := content.find(_CALL_BEGINS, begin)) >= 0 and (end := content.find(_ENDS, start)) >= 0:
        attributes = content[start + len(_CALL_BEGINS) : end].partition(">")[0]
        yield content[begin:start], attributes
        begin = end + len(_ENDS)
    yield content[begin:], None


def _spoken(message: MessageContent, text: str, calls: tuple[ToolCall, ...]) -> MessageContent:
    reasoning, content = _split_reasoning(text)
    return replace(message, content=content, reasoning=reasoning, calls=calls)


def _call(attributes: str, index: int) -> tuple[ToolCall, MessageContent | None]:
    """Return a call, and the message of its result if it has one."""
    values = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(attributes)}
    call = ToolCall(values.get("id") or f"call{index:05d}", values.get("name", ""), _text(values.get("arguments", "")))
    if "result" not in values:
        return call, None
    result = ToolResult(call_id=call.call_id, tool=call.name, title=call.name, outcome=ToolOutcome.DONE)
    return call, MessageContent(role="tool", content=_text(values["result"]), result=result)


def _text(written: str) -> str:
    """Return the text that an attribute has as JSON; other values, and what is no JSON, as they are."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return written
    return value if isinstance(value, str) else written


def _attachments(file: JsonField, media: ImportedMedia) -> tuple[Attachment, ...]:
    url = file.at("url")
    if isinstance(url.value, str) and url.value.startswith("data:"):
        return media.attachment(url, file.at("name").text())
    media.skipped.append(SkippedItem(file.place, "is a file, which is not imported"))
    return ()


def _split_reasoning(content: str) -> tuple[str, str]:
    """Split reasoning and answer: reasoning comes first, in a folded quote."""
    if not content.startswith(_REASONING_BEGINS):
        return "", content
    folded, ends, answer = content.partition("</details>")
    _, has_summary, quoted = folded.partition("</summary>")
    if not ends or not has_summary:
        return "", content
    lines = html.unescape(quoted).strip().splitlines()
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines), answer.lstrip("\n")
