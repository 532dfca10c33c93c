"""ChatGPT's export, conversations.json.

Owns the meaning of its content types. Internal nodes (hidden system messages, browsing) are dropped; pictures and
files, which the export does not contain, are reported as skipped.
"""

from __future__ import annotations

from app.chat.conversation import Chat, MessageContent, Role
from app.chat.formats.json_reader import ImportedChat, JsonField, SkippedItem, TreeNode, import_tree

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}


def is_chatgpt(chat: JsonField) -> bool:
    """Return whether this is a chat of such an export."""
    return chat.at("mapping").is_given


def read_chatgpt(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for an invalid value."""
    skipped: list[SkippedItem] = []
    nodes = {key: _node(node, skipped) for key, node in chat.at("mapping").entries()}
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


def _node(node: JsonField, skipped: list[SkippedItem]) -> TreeNode:
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
    text = _text(content, skipped)
    if not text.strip():
        return TreeNode(parent, None)
    model = metadata.at("model_slug").text() if role == "assistant" else ""
    created_ms = message.at("create_time").moment_ms()
    return TreeNode(parent, MessageContent(role=role, content=text, model=model, created_ms=created_ms))


def _text(content: JsonField, skipped: list[SkippedItem]) -> str:
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
