"""A chat as Ollama and OpenAI take it in a request: a model and a list of messages.

Owns nothing but that list: it has no branches and no times.
"""

from __future__ import annotations

from app.chat.formats.field import Field, UnfitError
from app.chat.formats.graft import Node, graft
from app.chat.formats.reading import Header, LeftOut, Reading, reading
from app.chat.message import ROLES, Utterance

__all__ = ["is_plain_messages", "read_plain_messages"]


def is_plain_messages(chat: Field) -> bool:
    """Whether this is such a list."""
    return isinstance(chat.at("messages").value, list)


def read_plain_messages(chat: Field) -> Reading:
    """Return the chat; a system message at the beginning is its system prompt. Raises UnfitError."""
    left_out: list[LeftOut] = []
    said = [_utterance(message, left_out) for message in chat.at("messages").items()]
    system = said.pop(0).content if said and said[0].role == "system" else ""
    nodes = {str(index): Node(str(index - 1), utterance) for index, utterance in enumerate(said)}
    grafted = graft(nodes, "")
    header = Header(title=chat.at("title").text(), model=chat.at("model").text(), system=system)
    return reading(header, grafted.messages, grafted.leaf_id, chat.place, left_out)


def _utterance(message: Field, left_out: list[LeftOut]) -> Utterance:
    role = message.at("role").text()
    if role not in ROLES:
        raise UnfitError(message.at("role").place, f"is none of {', '.join(sorted(ROLES))}")
    left_out += [LeftOut(image.place, "is a picture, which is not taken in") for image in message.at("images").items()]
    return Utterance(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=_content(message.at("content"), left_out),
        reasoning=message.at("thinking").text() or message.at("reasoning_content").text(),
    )


def _content(content: Field, left_out: list[LeftOut]) -> str:
    if not isinstance(content.value, list):
        return content.text()
    texts = []
    for part in content.items():
        if part.at("text").is_given:
            texts.append(part.at("text").text())
        else:
            left_out.append(LeftOut(part.place, "is a part without text, which is not taken in"))
    return "\n".join(texts)
