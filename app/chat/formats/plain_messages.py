"""A model and a list of messages, as requests to Ollama and OpenAI have them: no branches, no times.

Pictures and sounds in it are imported: Ollama's `images`, OpenAI's `image_url` with a data URL, and `input_audio`; and
so are calls of tools with their results.
"""

from __future__ import annotations

from app.chat.conversation import Attachment, Chat, ChatSettings, MessageContent, Role
from app.chat.formats.json_reader import FormatError, ImportedChat, JsonField, SkippedItem, TreeNode, import_tree
from app.chat.formats.media import ImportedMedia
from app.chat.formats.tools import CallMatcher

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def is_plain_messages(chat: JsonField) -> bool:
    """Return whether this is such a list."""
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
        raise FormatError(message.at("role").place, f"is none of {', '.join(sorted(_ROLES))}")
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
