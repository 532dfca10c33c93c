"""A chat as Ollama and OpenAI take it in a request: a model and a list of messages.

Owns nothing but that list: it has no branches and no times.
"""

from __future__ import annotations

from app.chat.conversation import ROLES, MessageContent
from app.chat.formats.import_tree import TreeNode, import_tree
from app.chat.formats.json_reader import ChatInfo, FormatError, ImportedChat, JsonField, SkippedItem, reading

__all__ = ["is_plain_messages", "read_plain_messages"]


def is_plain_messages(chat: JsonField) -> bool:
    """Whether this is such a list."""
    return isinstance(chat.at("messages").value, list)


def read_plain_messages(chat: JsonField) -> ImportedChat:
    """Return the chat; a system message at the beginning is its system prompt. Raises FormatError."""
    left_out: list[SkippedItem] = []
    said = [_utterance(message, left_out) for message in chat.at("messages").items()]
    system = said.pop(0).content if said and said[0].role == "system" else ""
    nodes = {str(index): TreeNode(str(index - 1), utterance) for index, utterance in enumerate(said)}
    grafted = import_tree(nodes, "")
    header = ChatInfo(title=chat.at("title").text(), model=chat.at("model").text(), system=system)
    return reading(header, grafted.messages, grafted.leaf_id, chat.place, left_out)


def _utterance(message: JsonField, left_out: list[SkippedItem]) -> MessageContent:
    role = message.at("role").text()
    if role not in ROLES:
        raise FormatError(message.at("role").place, f"is none of {', '.join(sorted(ROLES))}")
    left_out += [
        SkippedItem(image.place, "is a picture, which is not taken in") for image in message.at("images").items()
    ]
    return MessageContent(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=_content(message.at("content"), left_out),
        reasoning=message.at("thinking").text() or message.at("reasoning_content").text(),
    )


def _content(content: JsonField, left_out: list[SkippedItem]) -> str:
    if not isinstance(content.value, list):
        return content.text()
    texts = []
    for part in content.items():
        if part.at("text").is_given:
            texts.append(part.at("text").text())
        else:
            left_out.append(SkippedItem(part.place, "is a part without text, which is not taken in"))
    return "\n".join(texts)
