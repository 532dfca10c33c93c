"""Chats of other apps: exports of Open WebUI and ChatGPT, and lists of messages as requests to Ollama and OpenAI have.

Open WebUI has calls of tools, their results and the reasoning within the text of an answer, and pictures as data URLs.
ChatGPT's conversations.json has internal nodes (hidden system messages, browsing), which are dropped, and no pictures
and files, which are reported as skipped. A list of messages has no branches and no times.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from app.chat.conversation import Attachment, Chat, ChatSettings, MessageContent, Role
from app.chat.formats.json_reader import (
    CallMatcher,
    FormatError,
    ImportedChat,
    ImportedMedia,
    JsonField,
    SkippedItem,
    TreeNode,
    import_tree,
)
from app.protocol.chat import ToolCall
from app.tools.tool import ToolOutcome, ToolResult

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING_BEGINS = '<details type="reasoning"'
_CALL_BEGINS, _ENDS = '<details type="tool_calls"', "</details>"
_ATTRIBUTE = re.compile(r'\b(\w++)="([^"]*)"')  # a word is tried once, not from each of its letters


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
    """Return what an answer says: its reasoning comes first, in a folded quote."""
    reasoning = ""
    folded, ends, answer = text.partition(_ENDS)
    _, has_summary, quoted = folded.partition("</summary>")
    if text.startswith(_REASONING_BEGINS) and ends and has_summary:
        lines = html.unescape(quoted).strip().splitlines()
        reasoning = "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines)
        text = answer.lstrip("\n")
    return replace(message, content=text, reasoning=reasoning, calls=calls)


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


def is_plain_messages(chat: JsonField) -> bool:
    return isinstance(chat.at("messages").value, list)


def read_plain_messages(chat: JsonField) -> ImportedChat:
    """Return the chat; a system message at the beginning is its system prompt. Raises FormatError."""
    media, calls = ImportedMedia(), CallMatcher()
    messages = [_message(message, media, calls) for message in chat.at("messages").items()]
    system = messages.pop(0).content if messages and messages[0].role == "system" else ""
    nodes = {str(index): TreeNode(str(index - 1), message) for index, message in enumerate(messages)}
    header = Chat(id=1, title=chat.at("title").text(), model=chat.at("model").text(), settings=ChatSettings(system))
    transcript, _ = import_tree(header, nodes, "", chat.place)
    return ImportedChat(transcript, tuple(media.skipped), media.contents)


def _message(message: JsonField, media: ImportedMedia, calls: CallMatcher) -> MessageContent:
    role = _ROLES.get(message.at("role").text())
    if role is None:
        raise FormatError(message.at("role").place, f"must be one of {', '.join(sorted(_ROLES))}")
    content, attached = _content(message.at("content"), media)
    pictures = [each for picture in message.at("images").items() for each in media.attachment(picture)]
    return MessageContent(
        role=role,
        content=content,
        attachments=(*pictures, *attached),
        reasoning=message.at("thinking").text() or message.at("reasoning_content").text(),
        calls=calls.calls(message.at("tool_calls")) if role == "assistant" else (),
        result=calls.result(message) if role == "tool" else None,
    )


def _content(content: JsonField, media: ImportedMedia) -> tuple[str, list[Attachment]]:
    """Return the text of a content or of its parts, and the pictures and sounds among them."""
    if not isinstance(content.value, list):
        return content.text(), []
    texts: list[str] = []
    attached: list[Attachment] = []
    for part in content.items():
        url = part.at("image_url")
        fields = (url.at("url") if isinstance(url.value, dict) else url, part.at("input_audio").at("data"))
        held = next((field for field in fields if field.is_given), None)
        if held is not None:
            attached += media.attachment(held)
        elif part.at("text").is_given:
            texts.append(part.at("text").text())
        else:
            media.skipped.append(SkippedItem(part.place, "is a part without text, which is not imported"))
    return "\n".join(texts), attached


_CHATGPT_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}


def is_chatgpt(chat: JsonField) -> bool:
    return chat.at("mapping").is_given


def read_chatgpt(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for an invalid value."""
    skipped: list[SkippedItem] = []
    nodes = {key: _chatgpt_node(node, skipped) for key, node in chat.at("mapping").entries()}
    header = Chat(
        id=1,
        title=chat.at("title").text(),
        model=chat.at("default_model_slug").text(),
        created_ms=chat.at("create_time").moment_ms(),
        updated_ms=chat.at("update_time").moment_ms(),
        is_archived=chat.at("is_archived").flag(),
    )
    transcript, unreached = import_tree(header, nodes, chat.at("current_node").text(), chat.place)
    skipped += [SkippedItem(f"{chat.place}.mapping.{key}", "belongs to no branch") for key in unreached]
    return ImportedChat(transcript, tuple(skipped))


def _chatgpt_node(node: JsonField, skipped: list[SkippedItem]) -> TreeNode:
    parent = node.at("parent").text() or None
    message = node.at("message")
    metadata, content = message.at("metadata"), message.at("content")
    role = _CHATGPT_ROLES.get(message.at("author").at("role").text())
    if role is None or metadata.at("is_visually_hidden_from_conversation").flag():
        return TreeNode(parent, None)
    if content.at("content_type").text() == "thoughts":
        return TreeNode(
            parent, None, "".join(f"{item.at('content').text()}\n\n" for item in content.at("thoughts").items())
        )
    text = _chatgpt_text(content, skipped)
    if not text.strip():
        return TreeNode(parent, None)
    model = metadata.at("model_slug").text() if role == "assistant" else ""
    created_ms = message.at("create_time").moment_ms()
    return TreeNode(parent, MessageContent(role=role, content=text, model=model, created_ms=created_ms))


def _chatgpt_text(content: JsonField, skipped: list[SkippedItem]) -> str:
    kind = content.at("content_type").text()
    if kind == "code":
        return f"```{content.at('language').text()}\n{content.at('text').text()}\n```"
    if kind == "execution_output":
        return content.at("text").text()
    if kind in ("text", "multimodal_text"):
        return "\n".join(filter(None, (_part(part, skipped) for part in content.at("parts").items())))
    if kind not in ("", "reasoning_recap", "model_editable_context", "user_editable_context"):
        skipped.append(SkippedItem(content.place, f"has an unknown content type: {kind}"))
    return ""


def _part(part: JsonField, skipped: list[SkippedItem]) -> str:
    if isinstance(part.value, dict):
        if part.at("content_type").text() == "audio_transcription":
            return part.at("text").text()
        skipped.append(SkippedItem(part.place, "is a picture, a sound or a file, which the export does not contain"))
        return ""
    return part.text()
