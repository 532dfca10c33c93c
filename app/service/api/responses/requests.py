"""The bodies of OpenAI's /v1/responses, the items of its conversations, and the chat turn made of them.

Fields are refused where ignoring them would give a wrong answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import Field, PrivateAttr, StrictStr, ValidationError, ValidatorFunctionWrapHandler, model_validator

from app.engine.grammar.json_grammar import JsonFormat
from app.engine.request import SamplingParams
from app.protocol.chat import Message, ToolCall
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.messages import (
    ChatMessage,
    ContentPart,
    FunctionToolBody,
    TemplateVariablesBody,
    ToolChoiceBody,
    asked_thinking,
    refuse_unreadable_question,
    tool_options_of,
)
from app.service.api.openai.requests import ResponseFormat
from app.service.api.text_request import SamplingBody, conversation_of
from app.service.generation.chat import ChatTurn
from app.service.generation.media import NO_MEDIA, PromptMedia
from app.service.generation.message_order import can_join, join

Item: TypeAlias = dict[str, Any]

_REFERENCE = "item_reference"
_INPUT = "input"
# A custom tool as a function; what it is given is a text.
CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}
_ENCODED = "localllm:"  # before reasoning that a client keeps for us


class RawBody(Body):
    """An object of a request that is answered with, or stored, as it was sent."""

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        parsed = parse(value)
        if isinstance(value, dict):
            parsed._raw = value  # noqa: SLF001  (its own)
        return parsed

    @property
    def raw(self) -> dict[str, Any]:
        return self._raw


class ReasoningPart(Body):
    """A part of a thought or of its summary."""

    text: StrictStr = ""


class InputItem(RawBody):
    """A part of the conversation so far; its type decides which fields count."""

    type: StrictStr | None = None
    id: StrictStr | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: StrictStr | list[ContentPart] | None = None
    summary: list[ReasoningPart] | None = None
    encrypted_content: StrictStr | None = None
    call_id: StrictStr | None = None
    name: StrictStr | None = None
    arguments: StrictStr = ""
    input: StrictStr = ""
    output: StrictStr | list[ContentPart] = ""

    @property
    def kind(self) -> str:
        """The type. One with an id alone is a reference (source: the type `ItemReference` of openai 3.54)."""
        return self.type or ("message" if self.role or self.content is not None else _REFERENCE)

    @property
    def reference(self) -> str | None:
        """The id of the stored item that this one stands for, None where it stands for itself."""
        if self.kind != _REFERENCE:
            return None
        if not self.id:
            raise RequestError("An item of the input is a reference without an id.", "Send the id of a stored item.")
        return self.id

    def _new_id(self, position: int | None) -> str:
        text = json.dumps([position, self.raw]).encode()
        name = uuid4().hex if position is None else hashlib.blake2b(text, digest_size=16).hexdigest()
        return f"{_PREFIXES.get(self.kind, 'item')}_{name}"

    def turn(self, media: PromptMedia) -> tuple[str, tuple[RequestError, ...]]:
        """Return the role of the item, and why the model cannot be given parts of its content."""
        if self.kind != "message":
            return ("tool" if self.kind.endswith("_output") else "assistant"), ()
        role = self.role or "user"
        return role, ChatMessage.model_construct(role=role, content=self.content).faults(media)

    def messages(self, media: PromptMedia = NO_MEDIA) -> list[Message]:
        """Return the item as a message, if it says anything, with pictures and sounds as markers of `media`. Raises
        RequestError for an unsupported item."""
        if self.kind == "message":
            return [ChatMessage.model_construct(role=self.role or "user", content=self.content).message(media)]
        if self.kind in ("function_call", "custom_tool_call"):
            is_custom = self.kind == "custom_tool_call"
            arguments = json.dumps({_INPUT: self.input}) if is_custom else self.arguments or "{}"
            return [Message("assistant", calls=(ToolCall(self.call_id or "", self.name or "", arguments),))]
        if self.kind in ("function_call_output", "custom_tool_call_output"):
            result = ChatMessage.model_construct(role="tool", content=self.output, tool_call_id=self.call_id or "")
            return [result.message(media)]
        if self.kind == "reasoning":  # before an answer or a call; the template decides whether the model reads it
            content = self.content if isinstance(self.content, list) else []
            text = "".join(part.text or "" for part in content) or "\n\n".join(part.text for part in self.summary or ())
            text = text or _decode_reasoning(self.encrypted_content or "")
            return [Message("assistant", reasoning=text)] if text else []
        raise RequestError(f"An item of the input has the type {self.kind[:40]!r}.", "Send messages and calls.")

    def for_store(self, position: int | None = None) -> Item:
        """Return the item as it is stored and listed: with an id, a status, and parts of content. Clients that send the
        whole conversation each time leave ids out: by its `position` in it, an item has the same id each time, and is
        stored once."""
        item: Item = {**self.raw, "type": self.kind, "id": self.id or self._new_id(position)}
        if self.kind == "message":
            item["role"] = role = self.role or "user"
            content = self.raw.get("content")
            if not isinstance(content, list):
                text = content or ""
                answered: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
                item["content"] = [answered if role == "assistant" else {"type": "input_text", "text": text}]
        if self.kind != "reasoning":
            item.setdefault("status", "completed")
        return item


def parse_item(value: Item) -> InputItem:
    """Return a stored item. Raises RequestError for one of another version."""
    try:
        return InputItem.model_validate(value)
    except ValidationError:
        raise RequestError(f"The stored item {str(value.get('id'))[:80]!r} is invalid.", "Send it whole.") from None


def messages_of(items: Iterable[InputItem], media: PromptMedia) -> list[Message]:
    """Return the messages of `items`: reasoning, a text and calls that follow each other are one answer."""
    messages: list[Message] = []
    for message in (message for item in items for message in item.messages(media)):
        last = messages[-1] if messages and message.role == "assistant" else None
        is_another = last and last.content and (message.content or (message.reasoning and not last.calls))
        if last and can_join(last, message) and not is_another:
            messages[-1] = join(last, message)
        else:
            messages.append(message)
    return messages


def encode_reasoning(text: str) -> str:
    """Return a thought in the form that clients keep as `encrypted_content`, where a service stores nothing."""
    return _ENCODED + base64.b64encode(text.encode("utf-8", "replace")).decode()


def _decode_reasoning(text: str) -> str:
    """Return the thought in `encrypted_content`, empty for one of another service."""
    if not text.startswith(_ENCODED):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_ENCODED), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool in the arguments of its call; those that were cut as they are."""
    try:
        value = json.loads(arguments)[_INPUT]
    except (ValueError, LookupError, TypeError, RecursionError):
        return arguments
    return value if isinstance(value, str) else arguments


_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


Metadata: TypeAlias = Annotated[
    dict[Annotated[StrictStr, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]], Field(max_length=16)
]
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_ALLOWED = "allowed_tools"
_CUSTOM = "custom"
_OFFERED = ("function", _CUSTOM)
# Fields that a response has as they were sent.
_ECHOED = ("max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key", "safety_identifier")
_OF_FUNCTIONS = {"description": None, "parameters": None, "strict": None}  # which clients of this type expect


class CustomFormat(Body):
    """The form of a custom tool's input: any text, or one of a grammar."""

    type: StrictStr = "text"
    syntax: StrictStr = ""
    definition: StrictStr = ""


class ResponsesToolBody(RawBody):
    """A tool: a function, or a custom one, whose input is a text. Others run on OpenAI's servers and have no effect."""

    type: StrictStr
    name: StrictStr = ""
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    format: CustomFormat | None = None

    @property
    def is_offered(self) -> bool:
        return self.type in _OFFERED

    @property
    def unused(self) -> str:
        return "" if self.is_offered else self.type

    def tool(self) -> FunctionToolBody:
        function: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.parameters}
        if self.type == _CUSTOM:  # the grammar of its input is in the description: the model has to keep it by itself
            form = self.format
            grammar = f"The input has this form ({form.syntax}):\n{form.definition}" if form and form.definition else ""
            description = "\n\n".join(filter(None, (self.description, grammar)))
            function |= {"description": description, "parameters": CUSTOM_PARAMETERS}
        return FunctionToolBody.model_validate({"function": function})


class NamedTool(Body):
    type: StrictStr = "function"
    name: StrictStr = ""


class ResponsesToolChoiceBody(RawBody):
    """The tool to call, or with the type `allowed_tools` those that may be called."""

    type: StrictStr
    name: StrictStr = ""
    mode: StrictStr = "auto"
    tools: list[NamedTool] | None = None


class TextFormatBody(ResponseFormat):
    """The form of the answer, with the schema beside the type."""

    def json_format(self) -> JsonFormat | None:
        if self.type != "json_schema":
            return super().json_format()
        form = {"type": self.type, "json_schema": {"schema": self.schema_}}
        return ResponseFormat.model_validate(form).json_format()


class TextOptions(RawBody):
    format: TextFormatBody | None = None


class ReasoningOptions(RawBody):
    effort: StrictStr | None = None
    summary: StrictStr | None = None
    generate_summary: StrictStr | None = None  # its deprecated name


class Reference(Body):
    """A conversation by its id."""

    id: StrictStr


class _TurnBody(SamplingBody, TemplateVariablesBody):
    """The fields that make the prompt."""

    model: StrictStr | None = None
    input: StrictStr | list[InputItem] | None = None
    instructions: StrictStr | list[InputItem] | None = None
    previous_response_id: StrictStr | None = None
    conversation: StrictStr | Reference | None = None
    max_output_tokens: int | None = None
    tools: list[ResponsesToolBody] | None = None
    tool_choice: StrictStr | ResponsesToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None

    def items(self) -> list[InputItem]:
        if isinstance(self.input, str):
            return [InputItem.model_validate({"type": "message", "role": "user", "content": self.input})]
        return self.input or []

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation to go on with. Raises RequestError for two that are named."""
        if self.conversation is None:
            return None
        if self.previous_response_id:
            cause = "previous_response_id and conversation are both given."
            raise RequestError(cause, "Go on with one of the two.")
        return self.conversation if isinstance(self.conversation, str) else self.conversation.id

    def turn(self, items: Sequence[InputItem] | None = None, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        """Return the chat turn over `items`, all of the conversation, with its pictures and sounds in `media`. Raises
        RequestError for unsupported fields, and for a question with what the model cannot be given."""
        form = self.text.format if self.text else None
        options = {} if self._n_logprobs() is None else {"n_logprobs": self._n_logprobs()}
        return ChatTurn(
            messages=self._messages(self.items() if items is None else items, media),
            request=self.new_request("", None, self.max_output_tokens, conversation=self._conversation(), **options),
            media=media,
            answer_format=form.json_format() if form else None,
            tools=tool_options_of([tool.tool() for tool in self._offered()], self._choice(), self.parallel_tool_calls),
            thinking=asked_thinking(
                self.reasoning.effort if self.reasoning else None, variables=self.chat_template_kwargs
            ),
        )

    def _n_logprobs(self) -> int | None:
        return None

    def _conversation(self) -> str:
        return ""

    def _messages(self, items: Sequence[InputItem], media: PromptMedia) -> list[Message]:
        refuse_unreadable_question([item.turn(media) for item in items])
        messages = messages_of(items, media)
        if not messages:
            raise RequestError("The input is empty.", "Send at least one message.")
        instructions = self.instructions
        if isinstance(instructions, list):
            return [*messages_of(instructions, media), *messages]
        return [Message("system", instructions), *messages] if instructions else messages

    def _offered(self) -> list[ResponsesToolBody]:
        """Return the functions, those that `tool_choice` allows if it lists them."""
        functions = [tool for tool in self.tools or () if tool.is_offered]
        choice = self.tool_choice
        if not isinstance(choice, ResponsesToolChoiceBody) or choice.type != _ALLOWED:
            return functions
        names = {tool.name for tool in choice.tools or ()}
        return [tool for tool in functions if tool.name in names]

    def _choice(self) -> str | ToolChoiceBody | None:
        """Return the choice in the form of chat completions, which name a function one level deeper."""
        choice = self.tool_choice
        if not isinstance(choice, ResponsesToolChoiceBody):
            return choice
        if choice.type == _ALLOWED:
            return choice.mode
        function = {"name": choice.name} if choice.type in _OFFERED else None
        return ToolChoiceBody.model_validate({"type": choice.type, "function": function})


class InputTokensBody(_TurnBody):
    """The body of /v1/responses/input_tokens."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How a client wants reasoning, as its summary or with a copy to send back, and which tools are custom ones."""

    has_summary: bool = False
    has_encrypted: bool = False
    custom_tools: frozenset[str] = frozenset()


class ResponsesBody(_TurnBody):
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[StrictStr] | None = None
    metadata: Metadata | None = None
    top_logprobs: int | None = None
    prompt: dict[str, Any] | None = None
    truncation: StrictStr | None = None
    max_tool_calls: int | None = None
    user: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None
    prompt_cache_retention: StrictStr | None = None
    safety_identifier: StrictStr | None = None

    def output_form(self) -> OutputForm:
        options = self.reasoning
        return OutputForm(
            has_summary=options is not None and bool(options.summary or options.generate_summary),
            has_encrypted=_ENCRYPTED in (self.include or ()),
            custom_tools=frozenset(tool.name for tool in self.tools or () if tool.type == _CUSTOM),
        )

    @property
    def truncates(self) -> bool:
        """Whether the oldest turns are to leave a conversation that is too long, which nobody else can shorten."""
        return self.truncation == "auto"

    @property
    def stores(self) -> bool:
        """Whether the response is to be stored, as it is unless a client declines (source: openai 3.54, `store`)."""
        return self.store is not False

    def turn(self, items: Sequence[InputItem] | None = None, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        if self.prompt is not None:
            raise RequestError("prompt names a template on OpenAI's servers.", "Send its text in instructions.")
        return super().turn(items, media)

    def _n_logprobs(self) -> int | None:
        is_wanted = bool(self.top_logprobs) or _LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if is_wanted else None

    def _conversation(self) -> str:
        return conversation_of(self.prompt_cache_key, self.prompt_cache_retention)

    def echo(self, sampling: SamplingParams) -> dict[str, Any]:
        """Return the fields that a response repeats, with the values in force where the request leaves them out."""
        choice, text = self.tool_choice, self.text.raw if self.text else {}
        reasoning = self.reasoning.raw if self.reasoning else {}
        instructions = self.instructions
        return {
            **{name: getattr(self, name) for name in _ECHOED},
            "background": bool(self.background),
            "conversation": {"id": self.conversation_id} if self.conversation_id else None,
            "instructions": [item.raw for item in instructions] if isinstance(instructions, list) else instructions,
            "metadata": dict(self.metadata or {}),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "service_tier": "default",
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}, **{name: value for name, value in text.items() if value is not None}},
            "tool_choice": choice.raw if isinstance(choice, ResponsesToolChoiceBody) else choice or "auto",
            "tools": [{**(_OF_FUNCTIONS if tool.type == "function" else {}), **tool.raw} for tool in self.tools or ()],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "auto" if self.truncates else "disabled",
            "user": self.user,
        }
