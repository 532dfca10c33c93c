"""The bodies of OpenAI's /v1/responses, and the chat turn made of them.

Fields are refused where ignoring them would give a wrong answer. Items are in `items`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field, StrictStr

from app.engine.grammar.json_grammar import JsonFormat
from app.engine.request import SamplingParams
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.messages import (
    FunctionToolBody,
    TemplateVariablesBody,
    ToolChoiceBody,
    asked_thinking,
    refuse_unreadable_question,
    tool_options_of,
)
from app.service.api.openai.requests import ResponseFormat
from app.service.api.responses.items import CUSTOM_PARAMETERS, InputItem, RawBody, messages_of
from app.service.api.text_request import SamplingBody, conversation_of
from app.service.generation.chat import ChatTurn
from app.service.generation.media import NO_MEDIA, PromptMedia

Metadata: TypeAlias = Annotated[
    dict[Annotated[StrictStr, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]], Field(max_length=16)
]
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_ALLOWED = "allowed_tools"
_CUSTOM = "custom"
_OFFERED = ("function", _CUSTOM)
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
        if self.type == _CUSTOM:
            function |= {"description": self._custom_description(), "parameters": CUSTOM_PARAMETERS}
        return FunctionToolBody.model_validate({"function": function})

    def _custom_description(self) -> str:
        """Return the description with the grammar of the input, which the model has to keep by itself."""
        form = self.format
        grammar = f"The input has this form ({form.syntax}):\n{form.definition}" if form and form.definition else ""
        return "\n\n".join(filter(None, (self.description, grammar)))


class NamedTool(Body):
    """A tool by its name."""

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
    """The options of the text."""

    format: TextFormatBody | None = None


class ReasoningOptions(RawBody):
    """The options of reasoning."""

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
        """Return what is new in the conversation, references included."""
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
        """Return the chat turn over `items`, all of the conversation, with its pictures and sounds in `media`.

        Raises RequestError for unsupported fields, and for a question with what the model cannot be given.
        """
        form = self.text.format if self.text else None
        options = {} if self._n_logprobs() is None else {"n_logprobs": self._n_logprobs()}
        return ChatTurn(
            messages=self._messages(self.items() if items is None else items, media),
            request=self.new_request("", None, self.max_output_tokens, conversation=self._conversation(), **options),
            media=media,
            json_format=form.json_format() if form else None,
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

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of the tools whose input is a text."""
        return frozenset(tool.name for tool in self.tools or () if tool.type == _CUSTOM)


class InputTokensBody(_TurnBody):
    """The body of /v1/responses/input_tokens."""


class ResponsesBody(_TurnBody):
    """The body of /v1/responses."""

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

    @property
    def wants_encrypted_reasoning(self) -> bool:
        return _ENCRYPTED in (self.include or ())

    @property
    def wants_summary(self) -> bool:
        """Whether reasoning is wanted as its summary, which is then the whole of it."""
        options = self.reasoning
        return options is not None and bool(options.summary or options.generate_summary)

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
            "background": bool(self.background),
            "conversation": {"id": self.conversation_id} if self.conversation_id else None,
            "instructions": [item.raw for item in instructions] if isinstance(instructions, list) else instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": dict(self.metadata or {}),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "safety_identifier": self.safety_identifier,
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
