"""A model and a list of messages, as requests to Ollama and OpenAI have them: no branches, no times."""

from __future__ import annotations

from app.chat.conversation import ROLES, Chat, ChatSettings, MessageContent
from app.chat.formats.json_reader import FormatError, ImportedChat, JsonField, SkippedItem, TreeNode, import_tree

__all__ = ["is_plain_messages", "read_plain_messages"]


def is_plain_messages(chat: JsonField) -> bool:
    """Return whether this is such a list."""
    return isinstance(chat.at("messages").value, list)


def read_plain_messages(chat: JsonField) -> ImportedChat:
    """Return the chat; a system message at the beginning is its system prompt. Raises FormatError."""
    skipped: list[SkippedItem] = []
    messages = [_message(message, skipped) for message in chat.at("messages").items()]
    system = messages.pop(0).content if messages and messages[0].role == "system" else ""
    nodes = {str(index): TreeNode(str(index - 1), message) for index, message in enumerate(messages)}
    header = Chat(id=1, title=chat.at("title").text(), model=chat.at("model").text(), settings=ChatSettings(system))
    transcript, _ = import_tree(header, nodes, "", chat.place)
    return ImportedChat(transcript, tuple(skipped))


def _message(message: JsonField, skipped: list[SkippedItem]) -> MessageContent:
    role = message.at("role").text()
    if role not in ROLES:
        raise FormatError(message.at("role").place, f"is none of {', '.join(sorted(ROLES))}")
    skipped += [
        SkippedItem(image.place, "is a picture, which is not imported") for image in message.at("images").items()
    ]
    return MessageContent(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=_content(message.at("content"), skipped),
        reasoning=message.at("thinking").text() or message.at("reasoning_content").text(),
    )


def _content(content: JsonField, skipped: list[SkippedItem]) -> str:
    if not isinstance(content.value, list):
        return content.text()
    texts = []
    for part in content.items():
        if part.at("text").is_given:
            texts.append(part.at("text").text())
        else:
            skipped.append(SkippedItem(part.place, "is a part without text, which is not imported"))
    return "\n".join(texts)
