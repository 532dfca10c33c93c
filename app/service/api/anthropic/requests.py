"""Anthropic's request body -> a turn of a chat.

Owns field names, kinds of blocks and what is refused because ignoring it would give a wrong answer. Knows nothing of
responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field, StrictStr

from app.engine.grammar.json_grammar import schema_grammar
from app.engine.request import Request
from app.service.api.fields import Body
from app.service.api.messages import PARAGRAPH_BREAK, alternate_roles
from app.service.api.sampling import SamplingBody
from app.service.generation.chat import ChatTurn
from app.service.tools.tool import NO_TOOLS, Tool, ToolOptions
from quantizer.errors import RequestError

__all__ = ["CALL_ID_PREFIX", "MessagesBody"]

CALL_ID_PREFIX = "toolu_"  # before ids as templates take them

# A line of Claude Code's for Anthropic's accounts; it changes from request to request, and nothing cached would fit.
_BILLING = "x-anthropic-billing-header:"

Messages = list[dict[str, Any]]


class ContentBlock(Body):
    """A part of a message; which of its fields count is a matter of its type."""

    type: StrictStr
    text: StrictStr = ""
    id: StrictStr = ""
    name: StrictStr = ""
    input: dict[str, Any] | None = None
    tool_use_id: StrictStr = ""
    content: StrictStr | list[ContentBlock] | None = None

    def words(self) -> str:
        """Return the text of a block. Raises RequestError for one that cannot be read as text."""
        if self.type not in _WORDS:
            cause = f"A message has content of type {self.type[:40]!r}, which no model here takes."
            raise RequestError(cause, "Send text.")
        return _WORDS[self.type](self)

    def call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.input or {}}
        return {"id": self.id.removeprefix(CALL_ID_PREFIX), "type": "function", "function": function}

    def result(self) -> dict[str, Any]:
        return {
            "role": "tool",
            "tool_call_id": self.tool_use_id.removeprefix(CALL_ID_PREFIX),
            "content": _words(self.content),
        }


# What a block adds to the text of its message. Thoughts of earlier turns are not repeated to the model.
_WORDS: Mapping[str, Callable[[ContentBlock], str]] = {
    "text": lambda block: block.text,
    "thinking": lambda _: "",
    "redacted_thinking": lambda _: "",
    "tool_use": lambda _: "",
    "tool_result": lambda _: "",
}


class AnthropicMessage(Body):
    """A message of the conversation; a system message may stand among the others."""

    role: Literal["user", "assistant", "system"]
    content: StrictStr | list[ContentBlock]

    def for_template(self) -> Messages:
        """Return the messages that chat templates know: results of calls are messages of their own."""
        blocks = [] if isinstance(self.content, str) else self.content
        calls = [block.call() for block in blocks if block.type == "tool_use"]
        results = [block.result() for block in blocks if block.type == "tool_result"]
        text = _words(self.content)
        if calls:
            return [{"role": self.role, "content": text or None, "tool_calls": calls}]
        return [*results, {"role": self.role, "content": text}] if text or not results else results


class AnthropicToolBody(Body):
    """A tool; those that Anthropic's servers run have no schema here, and nobody to run them."""

    name: StrictStr = ""
    description: StrictStr = ""
    input_schema: dict[str, Any] | None = None


class AnthropicToolChoiceBody(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr = ""
    disable_parallel_tool_use: bool = False


class TypeBody(Body):
    type: StrictStr


class OutputFormatBody(TypeBody):
    schema_: Any = Field(None, alias="schema")


class OutputConfigBody(Body):
    format: OutputFormatBody | None = None

    def grammar(self) -> str:
        """Return the grammar of the answer, "" for text. Raises RequestError for a form that is not served."""
        if self.format is None:
            return ""
        if self.format.type != "json_schema":
            raise RequestError(f"output_config.format is {self.format.type[:40]!r}.", "Use json_schema.")
        return schema_grammar(self.format.schema_)


class MessagesBody(SamplingBody):
    """The body of /v1/messages and of /v1/messages/count_tokens."""

    model: StrictStr | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: StrictStr | list[ContentBlock] | None = None
    max_tokens: int | None = None
    stop_sequences: list[StrictStr] | None = None
    stream: bool | None = None
    tools: list[AnthropicToolBody] | None = None
    tool_choice: AnthropicToolChoiceBody | None = None
    thinking: TypeBody | None = None
    output_config: OutputConfigBody | None = None

    def turn(self) -> ChatTurn:
        """Return what is asked. Raises RequestError for what is not served."""
        system = [{"role": "system", "content": text}] if (text := self._system_text()) else []
        messages = [message for item in self.messages for message in item.for_template()]
        return ChatTurn(
            messages=alternate_roles([*system, *messages]),
            request=self._request(),
            tools=self._tool_options(),
            variables={"enable_thinking": self.thinking is not None and self.thinking.type != "disabled"},
            continues=True,
        )

    def _request(self) -> Request:
        return Request(
            request_id=uuid4().hex,
            prompt="",
            sampling=self.sampling(self.output_config.grammar() if self.output_config else ""),
            max_tokens=self.max_tokens,
            stop=tuple(text for text in self.stop_sequences or () if text),
        )

    def _system_text(self) -> str:
        if isinstance(self.system, list):
            return _words([block for block in self.system if not block.text.startswith(_BILLING)])
        return self.system or ""

    def _tool_options(self) -> ToolOptions:
        choice = self.tool_choice or AnthropicToolChoiceBody(type="auto")
        if choice.type == "none":
            return NO_TOOLS
        tools = ((tool, tool.input_schema) for tool in self.tools or ())
        return ToolOptions(
            tools=tuple(Tool(tool.name, tool.description, schema) for tool, schema in tools if schema is not None),
            must_call=choice.type in ("any", "tool"),
            only=choice.name if choice.type == "tool" else "",
            is_parallel=not choice.disable_parallel_tool_use,
        )


def _words(content: str | Sequence[ContentBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return PARAGRAPH_BREAK.join(filter(None, (block.words() for block in content)))
