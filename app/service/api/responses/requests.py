"""The bodies of OpenAI's /v1/responses, the items of its conversations, and the chat turn made of them.

Fields are refused where ignoring them would give a wrong answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, cast
from uuid import uuid4

from pydantic import Field, StrictStr, ValidationError

from app.engine.grammar.json_grammar import JsonFormat
from app.engine.request import Request, SamplingParams
from app.protocol.chat import Message, Tool, ToolCall
from app.protocol.errors import RequestError
from app.service.api.fields import Body, RawBody
from app.service.api.messages import (
    ChatMessage,
    ContentPart,
    TemplateVariablesBody,
    ToolChoiceBody,
    asked_thinking,
    refuse_unreadable_question,
    tool_options_of,
    with_verbosity,
)
from app.service.api.openai.requests import ResponseFormat
from app.service.api.responses.tools import (
    CALL_ARGUMENTS,
    CALL_KINDS,
    NamedTool,
    Offered,
    ResponsesToolBody,
    all_offered,
    qualified,
    result_text,
)
from app.service.api.text_request import SamplingBody, conversation_of
from app.service.generation.chat import ChatTurn
from app.service.generation.compaction import summary_message
from app.service.generation.media import NO_MEDIA, PromptMedia
from app.service.generation.message_order import can_join, join
from app.service.tools.parser import ToolOptions

Item: TypeAlias = dict[str, Any]

_REFERENCE = "item_reference"
_ENCODED = "localllm:"  # before reasoning that a client keeps for us


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
    namespace: StrictStr | None = None
    arguments: Any = None
    input: StrictStr = ""
    output: StrictStr | list[ContentPart] | list[dict[str, Any]] | dict[str, Any] | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    tools: list[Any] | None = None

    @property
    def unused(self) -> str:
        return self.kind if self.kind in _OF_SERVERS or (self.kind == _COMPACTION and not self._summary) else ""

    @property
    def _summary(self) -> str:
        return _decode_reasoning(self.encrypted_content or "")

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

    @property
    def is_of_user(self) -> bool:
        return self.kind == "message" and (self.role or "user") == "user"

    def _new_id(self, position: int | None) -> str:
        text = json.dumps([position, self.raw]).encode()
        name = uuid4().hex if position is None else hashlib.blake2b(text, digest_size=16).hexdigest()
        return f"{_PREFIXES.get(self.kind, 'item')}_{name}"

    def turn(self, media: PromptMedia) -> tuple[str, tuple[RequestError, ...]]:
        """Return the role of the item, and why the model cannot be given parts of its content."""
        if self.kind != "message":
            return ("tool" if self.kind in _RESULTS else "assistant"), ()
        role = self.role or "user"
        return role, ChatMessage.model_construct(role=role, content=self.content).faults(media)

    def messages(self, media: PromptMedia = NO_MEDIA) -> list[Message]:
        """Return the item as a message, if it says anything, with pictures and sounds as markers of `media`. Raises
        RequestError for an unsupported item."""
        if self.kind == "message":
            return [ChatMessage.model_construct(role=self.role or "user", content=self.content).message(media)]
        if self.kind in CALL_KINDS:
            return [Message("assistant", calls=(self._call(),))]
        if self.kind in _RESULTS:
            return [self._result(media)]
        if self.kind == "reasoning":  # before an answer or a call; the template decides whether the model reads it
            content = self.content if isinstance(self.content, list) else []
            text = "".join(part.text or "" for part in content) or "\n\n".join(part.text for part in self.summary or ())
            text = text or _decode_reasoning(self.encrypted_content or "")
            return [Message("assistant", reasoning=text)] if text else []
        if self.kind == _COMPACTION:
            return [summary_message(self._summary)] if self._summary else []
        if self.kind in _OF_SERVERS or self.kind == _ADDITIONAL:
            return []
        remedy = "Ask /v1/responses/compact." if self.kind == "compaction_trigger" else "Send messages and calls."
        raise RequestError(f"An item of the input has the type {self.kind[:40]!r}.", remedy)

    def _call(self) -> ToolCall:
        """Return the call as that of the function that the model was offered."""
        name = qualified(self.namespace, self.name or self.kind.removesuffix("_call"))
        if of_kind := CALL_ARGUMENTS.get(self.kind):
            return ToolCall(self.call_id or "", name, json.dumps(of_kind(self.raw), ensure_ascii=False))
        arguments = self.arguments or "{}"
        if not isinstance(arguments, str):
            raise RequestError("The arguments of a function_call are not a text.", "Send their JSON as a string.")
        return ToolCall(self.call_id or "", name, arguments)

    def _result(self, media: PromptMedia) -> Message:
        content = self._content_of_result()
        call_id = self.call_id or (self.id if self.kind == "local_shell_call_output" else "") or ""
        return ChatMessage.model_construct(role="tool", content=content, tool_call_id=call_id).message(media)

    def _content_of_result(self) -> str | list[ContentPart]:
        output = self.output
        if isinstance(output, str):
            return output
        if isinstance(output, list) and all(isinstance(part, ContentPart) for part in output):
            return cast("list[ContentPart]", output) or result_text(self.kind, self.raw)
        return result_text(self.kind, self.raw)

    def found_tools(self) -> list[ResponsesToolBody]:
        """Return the tools that a client has found or added since the request's own. Raises RequestError for invalid
        ones."""
        if self.kind not in (_FOUND, _ADDITIONAL):
            return []
        try:
            return [ResponsesToolBody.model_validate(tool) for tool in self.tools or ()]
        except ValidationError:
            raise RequestError(f"A tool of an item {self.kind} is invalid.", "Correct it.") from None

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


# What OpenAI's servers have run, and what only they can read: the model is not told.
_OF_SERVERS = frozenset(
    (
        *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "mcp_list_tools"),
        *("mcp_call", "mcp_approval_request", "mcp_approval_response", "computer_call", "computer_call_output"),
        *("program", "program_output", "configuration_update"),
    )
)
_FOUND, _ADDITIONAL, _COMPACTION = "tool_search_output", "additional_tools", "compaction"
_RESULTS = (
    *("function_call_output", "custom_tool_call_output", "shell_call_output", "local_shell_call_output"),
    *("apply_patch_call_output", _FOUND),
)
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
# Fields that a response has as they were sent.
_ECHOED = ("max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key", "safety_identifier")
_OF_FUNCTIONS = {"description": None, "parameters": None, "strict": None}  # which clients of this type expect


class ResponsesToolChoiceBody(NamedTool, RawBody):
    """The tool to call, or with the type `allowed_tools` those that may be called."""

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
    verbosity: StrictStr | None = None


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
        items = self.items() if items is None else items
        offered = self.offered(items)
        request = self._request([tool.notice for tool in offered if tool.notice])
        return ChatTurn(
            messages=with_verbosity(self._messages(items, media), self.text.verbosity if self.text else None),
            request=request,
            media=media,
            answer_format=form.json_format() if form else None,
            tools=self._tool_options(offered),
            thinking=asked_thinking(
                self.reasoning.effort if self.reasoning else None, variables=self.chat_template_kwargs
            ),
        )

    def _request(self, notices: Sequence[str]) -> Request:
        options = {} if self._n_logprobs() is None else {"n_logprobs": self._n_logprobs()}
        request = self.new_request("", None, self.max_output_tokens, conversation=self._conversation(), **options)
        return replace(request, notices=(*request.notices, *notices))

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

    def offered(self, items: Sequence[InputItem]) -> list[Offered]:
        """Return the tools that the model is offered after `items`, only those in `tool_choice` if it lists some."""
        offered = all_offered(self.tools or (), (tool for item in items for tool in item.found_tools()))
        choice = self.tool_choice
        if not isinstance(choice, ResponsesToolChoiceBody) or choice.type != _ALLOWED:
            return offered
        return [tool for tool in offered if any(named.fits(tool) for named in choice.tools or ())]

    def _tool_options(self, offered: Sequence[Offered]) -> ToolOptions:
        choice, tools = self.tool_choice, [tool.tool for tool in offered]
        if not isinstance(choice, ResponsesToolChoiceBody):
            return tool_options_of(tools, choice, self.parallel_tool_calls)
        if choice.type == _ALLOWED:
            return tool_options_of(tools, choice.mode, self.parallel_tool_calls)
        named = next((tool.tool.name for tool in offered if choice.fits(tool)), choice.name)
        function = {"name": named} if named else None
        body = ToolChoiceBody.model_validate({"type": choice.type, "function": function})
        return tool_options_of(tools, body, self.parallel_tool_calls)


class InputTokensBody(_TurnBody):
    """The body of /v1/responses/input_tokens."""


class CompactBody(_TurnBody):
    """The body of /v1/responses/compact."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How a client wants reasoning, as its summary or with a copy to send back, and the tools that the model is
    offered, by the name that it calls."""

    has_summary: bool = False
    has_encrypted: bool = False
    tools: Mapping[str, Offered] = field(default_factory=dict)

    def tool(self, name: str) -> Offered:
        """Return the tool that a model calls by `name`."""
        return self.tools.get(name) or Offered("function_call", Tool(name), name)


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
    timings_per_token: bool | None = None  # llama-server's, as for chats
    return_progress: bool | None = None

    def output_form(self, items: Sequence[InputItem] = ()) -> OutputForm:
        options = self.reasoning
        return OutputForm(
            has_summary=options is not None and bool(options.summary or options.generate_summary),
            has_encrypted=_ENCRYPTED in (self.include or ()),
            tools={tool.tool.name: tool for tool in self.offered(items)},
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
