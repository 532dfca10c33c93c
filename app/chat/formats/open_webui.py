"""A chat of Open WebUI's export, which people use over Ollama.

Owns where it keeps the tree, the system prompt and what a model thought.
"""

from __future__ import annotations

import html

from app.chat.conversation import ROLES, MessageContent
from app.chat.formats.import_tree import TreeNode, import_tree
from app.chat.formats.json_reader import ChatInfo, ImportedChat, JsonField, SkippedItem, reading

__all__ = ["is_open_webui", "read_open_webui"]

_THOUGHT_BEGINS = '<details type="reasoning"'


def is_open_webui(chat: JsonField) -> bool:
    """Whether this is one chat of such an export: with what the list shows of it around it, or without."""
    return _inner(chat).at("history").at("messages").is_given


def read_open_webui(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises UnfitError that names what does not fit."""
    inner = _inner(chat)
    history = inner.at("history")
    left_out: list[SkippedItem] = []
    nodes = {key: _node(node, left_out) for key, node in history.at("messages").entries()}
    grafted = import_tree(nodes, history.at("currentId").text())
    left_out += [SkippedItem(f"{history.place}.messages.{key}", "belongs to no branch") for key in grafted.unreached]
    header = ChatInfo(
        title=chat.at("title").text() or inner.at("title").text(),
        model=next((model.text() for model in inner.at("models").items()), ""),
        system=inner.at("params").at("system").text() or inner.at("system").text(),
        created_ms=chat.at("created_at").moment_ms() or inner.at("timestamp").moment_ms(),
        updated_ms=chat.at("updated_at").moment_ms(),
        is_pinned=chat.at("pinned").flag(),
        is_archived=chat.at("archived").flag(),
    )
    return reading(header, grafted.messages, grafted.leaf_id, chat.place, left_out)


def _inner(chat: JsonField) -> JsonField:
    return chat.at("chat") if chat.at("chat").is_given else chat


def _node(node: JsonField, left_out: list[SkippedItem]) -> TreeNode:
    parent = node.at("parentId").text() or None
    role = node.at("role").text()
    if role not in ROLES:
        left_out.append(SkippedItem(node.place, f"has a role that is not known: {role}"))
        return TreeNode(parent, None)
    left_out += [SkippedItem(file.place, "is a file, which is not taken in") for file in node.at("files").items()]
    thought, content = _apart(node.at("content").text())
    said = MessageContent(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=content,
        reasoning=thought,
        model=node.at("model").text(),
        created_ms=node.at("timestamp").moment_ms(),
    )
    return TreeNode(parent, said)


def _apart(content: str) -> tuple[str, str]:
    """What was thought and what was said: a thought stands before the answer, folded and quoted."""
    if not content.startswith(_THOUGHT_BEGINS):
        return "", content
    folded, ends, said = content.partition("</details>")
    _, has_summary, quoted = folded.partition("</summary>")
    if not ends or not has_summary:
        return "", content
    lines = html.unescape(quoted).strip().splitlines()
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines), said.lstrip("\n")
