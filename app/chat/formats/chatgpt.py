"""A chat of ChatGPT's export, conversations.json.

Owns what its kinds of content mean. Its nodes hold machinery too (hidden system messages, browsing): that is passed
over; pictures and files are not in the export, and are told as left out.
"""

from __future__ import annotations

from app.chat.conversation import MessageContent, Role
from app.chat.formats.import_tree import TreeNode, import_tree
from app.chat.formats.json_reader import ChatInfo, ImportedChat, JsonField, SkippedItem, reading

__all__ = ["is_chatgpt", "read_chatgpt"]

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}


def is_chatgpt(chat: JsonField) -> bool:
    """Whether this is one chat of such an export."""
    return chat.at("mapping").is_given


def read_chatgpt(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises UnfitError that names what does not fit."""
    left_out: list[SkippedItem] = []
    nodes = {key: _node(node, left_out) for key, node in chat.at("mapping").entries()}
    grafted = import_tree(nodes, chat.at("current_node").text())
    left_out += [SkippedItem(f"{chat.place}.mapping.{key}", "belongs to no branch") for key in grafted.unreached]
    header = ChatInfo(
        title=chat.at("title").text(),
        model=chat.at("default_model_slug").text(),
        created_ms=chat.at("create_time").moment_ms(),
        updated_ms=chat.at("update_time").moment_ms(),
        is_archived=chat.at("is_archived").flag(),
    )
    return reading(header, grafted.messages, grafted.leaf_id, chat.place, left_out)


def _node(node: JsonField, left_out: list[SkippedItem]) -> TreeNode:
    parent = node.at("parent").text() or None
    message = node.at("message")
    metadata, content = message.at("metadata"), message.at("content")
    role = _ROLES.get(message.at("author").at("role").text())
    if role is None or metadata.at("is_visually_hidden_from_conversation").flag():
        return TreeNode(parent, None)
    if content.at("content_type").text() == "thoughts":
        return TreeNode(
            parent, None, "".join(f"{item.at('content').text()}\n\n" for item in content.at("thoughts").items())
        )
    text = _text(content, left_out)
    if not text.strip():
        return TreeNode(parent, None)
    model = metadata.at("model_slug").text() if role == "assistant" else ""
    said = MessageContent(role=role, content=text, model=model, created_ms=message.at("create_time").moment_ms())
    return TreeNode(parent, said)


def _text(content: JsonField, left_out: list[SkippedItem]) -> str:
    kind = content.at("content_type").text()
    if kind == "code":
        return f"```{content.at('language').text()}\n{content.at('text').text()}\n```"
    if kind == "execution_output":
        return content.at("text").text()
    if kind in ("text", "multimodal_text"):
        return "\n".join(filter(None, (_part(part, left_out) for part in content.at("parts").items())))
    if kind not in ("", "reasoning_recap", "model_editable_context", "user_editable_context"):
        left_out.append(SkippedItem(content.place, f"is of a kind that is not known: {kind}"))
    return ""


def _part(part: JsonField, left_out: list[SkippedItem]) -> str:
    if isinstance(part.value, dict):
        if part.at("content_type").text() == "audio_transcription":
            return part.at("text").text()
        left_out.append(SkippedItem(part.place, "is a picture, a sound or a file, which the export does not hold"))
        return ""
    return part.text()
