"""A chat of Open WebUI's export, which people use over Ollama.

Owns where it keeps the tree, the system prompt and what a model thought.
"""

from __future__ import annotations

import html

from app.chat.formats.field import Field
from app.chat.formats.graft import Node, graft
from app.chat.formats.reading import Header, LeftOut, Reading, reading
from app.chat.message import ROLES, Utterance

__all__ = ["is_open_webui", "read_open_webui"]

_THOUGHT_BEGINS = '<details type="reasoning"'


def is_open_webui(chat: Field) -> bool:
    """Whether this is one chat of such an export: with what the list shows of it around it, or without."""
    return _inner(chat).at("history").at("messages").is_given


def read_open_webui(chat: Field) -> Reading:
    """Return the chat. Raises UnfitError that names what does not fit."""
    inner = _inner(chat)
    history = inner.at("history")
    left_out: list[LeftOut] = []
    nodes = {key: _node(node, left_out) for key, node in history.at("messages").entries()}
    grafted = graft(nodes, history.at("currentId").text())
    left_out += [LeftOut(f"{history.place}.messages.{key}", "belongs to no branch") for key in grafted.unreached]
    header = Header(
        title=chat.at("title").text() or inner.at("title").text(),
        model=next((model.text() for model in inner.at("models").items()), ""),
        system=inner.at("params").at("system").text() or inner.at("system").text(),
        created_ms=chat.at("created_at").moment_ms() or inner.at("timestamp").moment_ms(),
        updated_ms=chat.at("updated_at").moment_ms(),
        is_pinned=chat.at("pinned").flag(),
        is_archived=chat.at("archived").flag(),
    )
    return reading(header, grafted.messages, grafted.leaf_id, chat.place, left_out)


def _inner(chat: Field) -> Field:
    return chat.at("chat") if chat.at("chat").is_given else chat


def _node(node: Field, left_out: list[LeftOut]) -> Node:
    parent = node.at("parentId").text() or None
    role = node.at("role").text()
    if role not in ROLES:
        left_out.append(LeftOut(node.place, f"has a role that is not known: {role}"))
        return Node(parent, None)
    left_out += [LeftOut(file.place, "is a file, which is not taken in") for file in node.at("files").items()]
    thought, content = _apart(node.at("content").text())
    said = Utterance(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=content,
        reasoning=thought,
        model=node.at("model").text(),
        created_ms=node.at("timestamp").moment_ms(),
    )
    return Node(parent, said)


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
