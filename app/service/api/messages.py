"""Chat messages, tools and the fields for thinking in OpenAI's form, which other dialects share.

Each converts once, to `app.protocol.chat` or `Thinking`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, TypeVar

from pydantic import StrictBool, StrictStr
from pydantic_core import from_json

from app.common.media_formats import MediaKind
from app.protocol.chat import Message, Tool, ToolCall
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.generation.media import (
    NO_MEDIA,
    ContentText,
    Document,
    Medium,
    PromptMedia,
    UnreadableError,
    joined_parts,
    note_of_unreadable,
)
from app.service.generation.thinking import Thinking
from app.service.tools.parser import NO_TOOLS, ToolOptions

Value = TypeVar("Value")

_DEFAULTS = ("", "auto", "default")  # words for the model's own effort (LiteLLM's and Groq's)
_SWITCHES: Mapping[str, bool | None] = {
    "enabled": True,
    "adaptive": True,
    "on": True,
    "disabled": False,
    "off": False,
    **dict.fromkeys(_DEFAULTS),
}


class ThinkingOptions(Body):
    """How much to think: `thinking` of Anthropic, DeepSeek, Z.ai and Moonshot, and `reasoning` of OpenRouter."""

    type: StrictStr | None = None
    budget_tokens: int | None = None
    effort: StrictStr | None = None
    max_tokens: int | None = None
    enabled: StrictBool | None = None

    @property
    def is_on(self) -> bool | None:
        return self.enabled if self.type is None else _SWITCHES.get(self.type)


class TemplateVariablesBody(Body):
    """Variables for the chat template, under the name that llama-server, vLLM and SGLang have for them."""

    chat_template_kwargs: dict[str, Any] | None = None


class ChatThinkingBody(TemplateVariablesBody):
    """The fields for thinking that clients of /v1/chat/completions send."""

    reasoning_effort: StrictStr | None = None  # OpenAI
    reasoning: ThinkingOptions | StrictBool | StrictStr | None = None  # OpenRouter
    thinking: ThinkingOptions | StrictBool | StrictStr | None = None  # DeepSeek, Z.ai, Moonshot
    enable_thinking: StrictBool | None = None  # Alibaba, SiliconFlow
    thinking_budget: int | None = None  # Alibaba
    thinking_budget_tokens: int | None = None  # llama-server
    reasoning_budget_tokens: int | None = None  # llama-server
    reasoning_budget_message: StrictStr | None = None  # llama-server
    reasoning_control: StrictBool | None = None  # llama-server; any reasoning can be ended here
    thinking_token_budget: int | None = None  # vLLM

    def how_to_think(self) -> Thinking:
        """Return what the fields say; the first of several counts. Raises RequestError for an unknown effort."""
        thinking, reasoning = _options(self.thinking), _options(self.reasoning)
        budgets = (self.thinking_budget, self.reasoning_budget_tokens, self.thinking_budget_tokens)
        asked = asked_thinking(
            self.reasoning_effort or thinking.effort or reasoning.effort,
            _first(thinking.is_on, self.enable_thinking, reasoning.is_on),
            _first(thinking.budget_tokens, *budgets, self.thinking_token_budget, reasoning.max_tokens),
            self.chat_template_kwargs,
        )
        return replace(asked, conclusion=self.reasoning_budget_message)


def _options(value: ThinkingOptions | bool | str | None) -> ThinkingOptions:
    if isinstance(value, ThinkingOptions):
        return value
    if isinstance(value, str):
        return ThinkingOptions(type=value) if value in _SWITCHES else ThinkingOptions(effort=value)
    return ThinkingOptions(enabled=value)


def asked_thinking(
    effort: str | None = None,
    is_on: bool | None = None,
    n_tokens: int | None = None,
    variables: dict[str, Any] | None = None,
) -> Thinking:
    """Return how much to think. Raises RequestError as Thinking does."""
    known = "" if effort is None or effort in _DEFAULTS else effort
    return Thinking(is_on=is_on, effort=known, n_tokens=n_tokens, variables=variables or {})


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)


def joined_reasoning(thoughts: Iterable[object]) -> str:
    """Return the texts of `thoughts`, each a text or a list of parts with one, in paragraphs."""
    texts = (
        "".join(str(part.get("text") or "") for part in thought if isinstance(part, dict))
        if isinstance(thought, list)
        else thought
        for thought in thoughts
    )
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)


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


class _AllowedTool(Body):
    type: str = "function"
    function: _NamedFunction | None = None


class _AllowedTools(Body):
    mode: StrictStr = "auto"
    tools: list[_AllowedTool] | None = None


class ToolChoiceBody(Body):
    """A `tool_choice` that names the function to call, or with the type `allowed_tools` those that may be called."""

    type: str = "function"
    function: _NamedFunction | None = None
    allowed_tools: _AllowedTools | None = None


class _CalledFunction(Body):
    name: StrictStr
    arguments: StrictStr | dict[str, Any] | None = None


class ToolCallBody(Body):
    """A tool call in an earlier message."""

    id: StrictStr = ""
    function: _CalledFunction

    def call(self) -> ToolCall:
        arguments = self.function.arguments or "{}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(self.id, self.function.name, text)


def arguments_so_far(text: str, *, cuts_texts: bool = False) -> dict[str, Any]:
    """Return what is known of a call's arguments that were cut, without a text that was cut unless it `cuts_texts`: as
    the SDKs that read a stream have it."""
    try:
        value = from_json(text or "{}", allow_partial="trailing-strings" if cuts_texts else True)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def tool_options_of(
    tools: Iterable[Tool], choice: str | ToolChoiceBody | None, is_parallel: bool | None
) -> ToolOptions:
    """Return the tool options of a request; none with the choice "none". Raises RequestError for unknown choices."""
    if choice == "none":
        return NO_TOOLS
    only = ""
    if isinstance(choice, ToolChoiceBody) and choice.type == "allowed_tools" and choice.allowed_tools:
        allowed = {tool.function.name for tool in choice.allowed_tools.tools or () if tool.function}
        tools = [tool for tool in tools if tool.name in allowed]
        choice = choice.allowed_tools.mode
    if isinstance(choice, ToolChoiceBody):
        if choice.function is None:
            raise RequestError(f"tool_choice of type {choice.type[:40]!r} is not supported.", "Name a function.")
        only = choice.function.name
    elif choice not in (None, "auto", "required"):
        raise RequestError(f"tool_choice is {choice[:40]!r}.", "Use auto, none, required or name a function.")
    return ToolOptions(
        tools=tuple(tools),
        must_call=bool(only) or choice == "required",
        only=only,
        is_parallel=is_parallel,
    )


_VERBOSITIES: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "medium": "",
    "high": "Answer at length and in detail.",
}


def with_verbosity(messages: Sequence[Message], verbosity: str | None) -> list[Message]:
    """Return `messages` with how long answers are to be behind the instructions: OpenAI's models are trained for
    `verbosity`, others can only be told. Raises RequestError for an unknown one."""
    if verbosity is not None and verbosity not in _VERBOSITIES:
        raise RequestError(f"verbosity is {verbosity[:40]!r}.", f"Use {', '.join(_VERBOSITIES)}.")
    text = _VERBOSITIES[verbosity or "medium"]
    instructions = [*takewhile(lambda message: message.role == "system", messages)]
    return [*instructions, *([Message("system", text)] if text else []), *messages[len(instructions) :]]


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
    follows_text = False
    for part in parts:
        if not part.is_thought and (content := part.content_text(media)).text:
            yield replace(content, continues=follows_text and part.is_text)
            follows_text = part.is_text


class ChatMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[ContentPart] | None = None
    refusal: StrictStr | None = None  # in place of an answer's content
    name: StrictStr | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: Any = None  # DeepSeek's, llama-server's and our own
    reasoning: Any = None  # vLLM's and OpenRouter's
    thinking: Any = None  # Ollama's

    def message(self, media: PromptMedia = NO_MEDIA) -> Message:
        """Return the message, its pictures and sounds as markers of `media`."""
        text, part_ends = self._text(media)
        if self.role == "assistant":
            calls = tuple(call.call() for call in self.tool_calls or ())
            return Message("assistant", text, calls=calls, reasoning=self._reasoning())
        if self.role == "tool":
            return Message("tool", text, call_id=self.tool_call_id or "", name=self._tool_name() or "")
        return Message("system" if self.role == "developer" else self.role, text, part_ends=part_ends)

    def _tool_name(self) -> str | None:
        return self.name

    def faults(self, media: PromptMedia) -> tuple[RequestError, ...]:
        parts = self.content if isinstance(self.content, list) else ()
        return tuple(fault for part in parts if (fault := part.fault(media)))

    def _reasoning(self) -> str:
        fields = (self.reasoning_content, self.reasoning, self.thinking)
        named = next((field for field in fields if isinstance(field, str) and field), "")
        parts = self.content if isinstance(self.content, list) else ()
        return named or joined_reasoning(part.thinking or part.text for part in parts if part.is_thought)

    def _text(self, media: PromptMedia) -> tuple[str, tuple[int, ...]]:
        if isinstance(self.content, list):
            return joined_parts(_content_texts(self.content, media), "\n")
        return self.content or self.refusal or "", ()
