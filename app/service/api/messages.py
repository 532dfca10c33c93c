"""Chat messages and tools in OpenAI's form, which other dialects share, and what chat templates are given of them.

Owns roles, forms of content, where pictures and sounds stand in it, calls, and the order that strict templates demand.
Knows nothing of how a model writes a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any, Literal

from pydantic import StrictStr

from app.common.media_formats import MediaKind
from app.protocol.chat import Message, Tool, ToolCall
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.thinking import joined_reasoning
from app.service.generation.documents import Document
from app.service.generation.media import NO_MEDIA, ContentText, Medium, PromptMedia, joined_content
from app.service.generation.unreadable_content import UnreadableError, note_of_unreadable
from app.service.tools.tool import NO_TOOLS, ToolOptions


class _FunctionBody(Body):
    name: StrictStr
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None


class FunctionToolBody(Body):
    """A tool; only functions are supported."""

    type: str = "function"
    function: _FunctionBody | None = None

    def tool(self) -> Tool:
        if self.type != "function" or self.function is None:
            raise RequestError(f"A tool has the type {self.type[:40]!r} or no function.", "Send functions.")
        return Tool(self.function.name, self.function.description or "", self.function.parameters or {})


class _NamedFunction(Body):
    name: StrictStr


class ToolChoiceBody(Body):
    """A `tool_choice` that names the function to call."""

    type: str = "function"
    function: _NamedFunction | None = None


class _CalledFunction(Body):
    name: StrictStr
    arguments: StrictStr | dict[str, Any] | None = None


class ToolCallBody(Body):
    """A tool call in an earlier message."""

    id: StrictStr = ""
    function: _CalledFunction

    def call(self) -> ToolCall:
        """Return the call; arguments that are no JSON object were cut off."""
        arguments = self.function.arguments or "{}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(self.id, self.function.name, text)


def tool_options_of(
    tools: Sequence[FunctionToolBody], choice: str | ToolChoiceBody | None, is_parallel: bool | None
) -> ToolOptions:
    """Return the tool options of a request; none with the choice "none". Raises RequestError for unknown choices."""
    if choice == "none":
        return NO_TOOLS
    only = ""
    if isinstance(choice, ToolChoiceBody):
        if choice.function is None:
            raise RequestError(f"tool_choice of type {choice.type[:40]!r} is not supported.", "Name a function.")
        only = choice.function.name
    elif choice not in (None, "auto", "required"):
        raise RequestError(f"tool_choice is {choice[:40]!r}.", "Use auto, none, required or name a function.")
    return ToolOptions(
        tools=tuple(tool.tool() for tool in tools),
        must_call=bool(only) or choice == "required",
        only=only,
        is_parallel=is_parallel is not False,
    )


_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
_THOUGHT_TYPES = ("thinking", "reasoning", "reasoning_text")  # in an answer
_PICTURE_TYPES = ("image_url", "input_image")
_SOUND_TYPES = ("input_audio", "audio_url")
_FILE_TYPES = ("file", "input_file")


def refuse_unreadable_question(turns: Sequence[tuple[str, Sequence[RequestError]]]) -> None:
    """Raise the first fault of what the user has just sent.

    `turns` has the role of each message and the faults of its content: of types that the model does not read, damaged,
    or at an address that is not fetched. Everything older is replaced by a note instead, also the results of tools and
    what agents add to these: each later request would fail too.
    """
    spoken = [turn for turn in turns if turn[0] not in ("system", "developer")]
    asked = [*takewhile(lambda turn: turn[0] == "user", reversed(spoken))]
    follows_tool = len(asked) < len(spoken) and spoken[-len(asked) - 1][0] == "tool"
    if asked and asked[0][1] and not follows_tool:
        raise asked[0][1][0]


class _FileBody(Body):
    filename: StrictStr | None = None
    file_data: StrictStr = ""


class _AddressBody(Body):
    url: StrictStr = ""


class _SoundBody(Body):
    data: StrictStr = ""
    url: StrictStr = ""
    format: StrictStr | None = None  # which its bytes say too


class ContentPart(Body):
    """A part of a message's content; what is neither text, picture, sound nor a document becomes a note."""

    type: str
    text: StrictStr | None = None
    refusal: StrictStr | None = None
    filename: StrictStr | None = None
    file_data: StrictStr = ""
    file: _FileBody | None = None
    image_url: StrictStr | _AddressBody | None = None
    audio_url: StrictStr | _AddressBody | None = None  # vLLM's
    input_audio: _SoundBody | None = None
    thinking: Any = None  # Mistral's: a text, or parts with one

    @property
    def is_text(self) -> bool:
        return self.type in _TEXT_TYPES

    @property
    def is_thought(self) -> bool:
        return self.type in _THOUGHT_TYPES

    @property
    def medium(self) -> Medium | None:
        """The picture or sound, None for text and for files; one that is only named (`file_id`) has no content."""
        if self.type in _PICTURE_TYPES:
            return Medium(MediaKind.PICTURE, _address(self.image_url))
        if self.type in _SOUND_TYPES:
            sound = self.input_audio or _SoundBody()
            return Medium(MediaKind.SOUND, sound.data or sound.url or _address(self.audio_url))
        return None

    @property
    def document(self) -> Document | None:
        """The document, None for anything else and for one that is only named (`file_id`)."""
        data = self.file_data or (self.file.file_data if self.file else "")
        return Document(self._name or "document", data) if data and self.type in _FILE_TYPES else None

    @property
    def _name(self) -> str:
        return self.filename or (self.file.filename if self.file else None) or ""

    def fault(self, media: PromptMedia) -> RequestError | None:
        """Return why the model cannot be given the part, None where it can."""
        if self.is_text or self.is_thought:
            return None
        if self.document:
            return media.document_fault(self.document)
        return media.fault(self.medium) if self.medium else UnreadableError(self.type, media.senses)

    def content_text(self, media: PromptMedia) -> ContentText:
        """Return the text, the marker of a picture or sound, or the note in place of anything else."""
        if self.is_text:
            return ContentText(self.text or self.refusal or "")
        if self.medium:
            return media.part_of(self.medium)
        if self.document and media.reads_documents:
            return media.document_part(self.document)
        return ContentText(note_of_unreadable(self.type, self._name, media.senses))


def _address(value: str | _AddressBody | None) -> str:
    return value.url if isinstance(value, _AddressBody) else value or ""


def _content_texts(parts: Sequence[ContentPart], media: PromptMedia) -> Iterator[ContentText]:
    """Yield what the parts of a message but its reasoning are as text; parts of text that follow each other are one."""
    said = (part for part in parts if not part.is_thought)
    for is_text, group in groupby(said, key=lambda part: part.is_text):
        texts = [part.content_text(media) for part in group]
        yield from [ContentText("".join(text.text for text in texts))] if is_text else texts


class ChatMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[ContentPart] | None = None
    name: StrictStr | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: Any = None  # DeepSeek's, llama-server's and our own
    reasoning: Any = None  # vLLM's and OpenRouter's
    thinking: Any = None  # Ollama's

    def message(self, media: PromptMedia = NO_MEDIA) -> Message:
        """Return the message, its pictures and sounds as markers of `media`."""
        text = self._text(media)
        if self.role == "assistant":
            calls = tuple(call.call() for call in self.tool_calls or ())
            return Message("assistant", text, calls=calls, reasoning=self._reasoning())
        if self.role == "tool":
            return Message("tool", text, call_id=self.tool_call_id or "", name=self._tool_name() or "")
        return Message("system" if self.role == "developer" else self.role, text)

    def _tool_name(self) -> str | None:
        return self.name

    def faults(self, media: PromptMedia) -> tuple[RequestError, ...]:
        """Return why the model cannot be given parts of the content."""
        parts = self.content if isinstance(self.content, list) else ()
        return tuple(fault for part in parts if (fault := part.fault(media)))

    def _reasoning(self) -> str:
        """Return the reasoning before an earlier answer, under whichever name it comes back."""
        named = next(filter(None, map(_text_or_none, (self.reasoning_content, self.reasoning, self.thinking))), "")
        parts = self.content if isinstance(self.content, list) else ()
        return named or joined_reasoning(part.thinking or part.text for part in parts if part.is_thought)

    def _text(self, media: PromptMedia) -> str:
        if isinstance(self.content, list):
            return joined_content(_content_texts(self.content, media), "\n")
        return self.content or ""


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
