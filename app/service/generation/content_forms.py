"""Which form of a message's content a chat template prints: a text, or only a list of parts with a text in each.

Owns how that is found out, and remembers it. Source of the rule: llama.cpp's common/chat.cpp, which gives templates
that print no text (SmolVLM, Idefics 3, LLaVA) one part of text, in which the markers of pictures are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.protocol.errors import RequestError

if TYPE_CHECKING:  # it holds one of these
    from app.service.models.model_file import ModelFile
    from app.service.models.served_model import TemplateRenderer


MAX_REMEMBERED = 32
_MARK = "localllmprobe"

Message = dict[str, Any]


class ContentForms:
    """Finds the form of templates, each once."""

    def __init__(self) -> None:
        self._takes_parts: OrderedDict[str, bool] = OrderedDict()

    async def takes_only_parts(self, file: ModelFile, renderer: TemplateRenderer) -> bool:
        """Return whether the template of `file` prints content in parts, and none that is a text."""
        template = file.chat_template
        if template not in self._takes_parts:
            prints_text = await _prints(file, renderer, _MARK)
            self._takes_parts[template] = not prints_text and await _prints(file, renderer, _parts(_MARK))
            while len(self._takes_parts) > MAX_REMEMBERED:
                self._takes_parts.popitem(last=False)
        return self._takes_parts[template]


def in_parts(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with each text as a list of one part."""
    return [
        {**message, "content": _parts(message["content"])} if isinstance(message.get("content"), str) else message
        for message in messages
    ]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


async def _prints(file: ModelFile, renderer: TemplateRenderer, content: object) -> bool:
    """Return whether a question with `content` shows in the prompt as its text, not as the data of its parts."""
    tokens: dict[str, Any] = {"bos_token": file.bos_token, "eos_token": file.eos_token, "tools": None}
    try:
        text = await renderer.render(file.chat_template, [{"role": "user", "content": content}], **tokens)
    except RequestError:
        return False
    return _MARK in text and not any(f"{quote}type{quote}" in text for quote in "'\"")
