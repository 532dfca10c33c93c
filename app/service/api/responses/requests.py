"""The body of OpenAI's /v1/responses, and the chat turn made of it.

Owns field names, types of items, and which fields are refused because ignoring them would give a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import StrictStr

from app.service.api.fields import Body
from app.service.api.messages import (
    ChatMessage,
    ContentPart,
    FunctionToolBody,
    ToolCallBody,
    ToolChoiceBody,
    alternate_roles,
    refuse_unreadable_question,
    tool_options_of,
)
from app.service.api.openai.requests import ResponseFormat
from app.service.api.text_request import SamplingBody
from app.service.generation.chat import ChatTurn
from quantizer.errors import RequestError

__all__ = ["ResponsesBody"]

Messages = list[dict[str, Any]]


class InputItem(Body):
    """A part of the conversation so far; its type decides which fields count."""

    type: StrictStr = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: StrictStr | list[ContentPart] | None = None
    call_id: StrictStr = ""
    name: StrictStr = ""
    arguments: StrictStr = ""
    output: StrictStr | list[ContentPart] = ""

    def turn(self) -> tuple[str, tuple[str, ...]]:
        """Return the role of the item and the types of its content that is not text."""
        if self.type != "message":
            return ("tool" if self.type.endswith("_output") else "assistant"), ()
        return self.role, ChatMessage.model_construct(role=self.role, content=self.content).unreadable()

    def for_template(self) -> Messages:
        """Return messages in the form of chat templates. Raises RequestError for an unsupported item."""
        if self.type not in _MESSAGES:
            raise RequestError(f"An item of the input has the type {self.type[:40]!r}.", "Send messages and calls.")
        return _MESSAGES[self.type](self)


def _message(item: InputItem) -> Messages:
    return [ChatMessage.model_construct(role=item.role, content=item.content).for_template()]


def _call(item: InputItem) -> Messages:
    call = ToolCallBody.model_validate(
        {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
    )
    return [{"role": "assistant", "content": None, "tool_calls": [call.for_template()]}]


def _result(item: InputItem) -> Messages:
    result = ChatMessage.model_construct(role="tool", content=item.output, tool_call_id=item.call_id)
    return [result.for_template()]


# Thoughts of earlier turns are not repeated to the model.
_MESSAGES: Mapping[str, Callable[[InputItem], Messages]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _result,
    "reasoning": lambda _: [],
}


class ResponsesToolBody(Body):
    """A tool; those that are not functions run on OpenAI's servers and are ignored."""

    type: StrictStr
    name: StrictStr = ""
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None

    def tool(self) -> FunctionToolBody:
        return FunctionToolBody.model_validate({"function": self.model_dump(exclude={"type"})})


class ResponsesToolChoiceBody(Body):
    """The tool to call."""

    type: StrictStr
    name: StrictStr = ""


class TextFormatBody(ResponseFormat):
    """The form of the answer, with the schema beside the type."""

    def grammar(self) -> str:
        if self.type == "json_schema":
            return ResponseFormat.model_validate({"type": self.type, "json_schema": {"schema": self.schema_}}).grammar()
        return super().grammar()


class TextOptions(Body):
    """The options of the text."""

    format: TextFormatBody | None = None


class ReasoningOptions(Body):
    """The options of reasoning."""

    effort: StrictStr | None = None


class ResponsesBody(SamplingBody):
    """The body of /v1/responses. Nothing is stored, so each request has to contain the whole conversation."""

    model: StrictStr | None = None
    input: StrictStr | list[InputItem]
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: list[ResponsesToolBody] | None = None
    tool_choice: StrictStr | ResponsesToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None

    def turn(self) -> ChatTurn:
        """Return the chat turn. Raises RequestError for unsupported fields."""
        if self.previous_response_id:
            raise RequestError("Responses are not stored.", "Send the items of the earlier ones in input.")
        effort = self.reasoning.effort if self.reasoning else None
        form = self.text.format if self.text else None
        return ChatTurn(
            messages=alternate_roles(self._messages()),
            request=self.new_request("", form.grammar() if form else "", self.max_output_tokens),
            tools=tool_options_of(
                [tool.tool() for tool in self.tools or () if tool.type == "function"],
                self._choice(),
                self.parallel_tool_calls,
            ),
            variables={"reasoning_effort": effort, "enable_thinking": effort != "none"} if effort else {},
        )

    def _messages(self) -> Messages:
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        items = [InputItem(content=self.input)] if isinstance(self.input, str) else self.input
        refuse_unreadable_question([item.turn() for item in items])
        messages = [message for item in items for message in item.for_template()]
        if not messages:
            raise RequestError("The input is empty.", "Send at least one message.")
        return [*system, *messages]

    def _choice(self) -> str | ToolChoiceBody | None:
        """Return the choice in the form of chat completions, which name a function one level deeper."""
        if not isinstance(self.tool_choice, ResponsesToolChoiceBody):
            return self.tool_choice
        function = {"name": self.tool_choice.name} if self.tool_choice.type == "function" else None
        return ToolChoiceBody.model_validate({"type": self.tool_choice.type, "function": function})
