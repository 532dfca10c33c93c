"""Open WebUI's export.

Owns where it stores the tree, the system prompt, the reasoning, and pictures (data URLs); other files are elsewhere.
"""

from __future__ import annotations

import html

from app.chat.conversation import Attachment, Chat, ChatSettings, MessageContent, Role
from app.chat.formats.json_reader import ImportedChat, JsonField, SkippedItem, TreeNode, import_tree
from app.chat.formats.media import ImportedMedia

__all__ = ["is_open_webui", "read_open_webui"]

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING_BEGINS = '<details type="reasoning"'


def is_open_webui(chat: JsonField) -> bool:
    """Return whether this is a chat of such an export, with or without the list's wrapper."""
    return _inner(chat).at("history").at("messages").is_given


def read_open_webui(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for an invalid value."""
    inner = _inner(chat)
    history = inner.at("history")
    media = ImportedMedia()
    nodes = {key: _node(node, media) for key, node in history.at("messages").entries()}
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
    reasoning, content = _split_reasoning(node.at("content").text())
    message = MessageContent(
        role=role,
        content=content,
        reasoning=reasoning,
        attachments=tuple(each for file in node.at("files").items() for each in _attachments(file, media)),
        model=node.at("model").text(),
        created_ms=node.at("timestamp").moment_ms(),
    )
    return TreeNode(parent, message)


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
