"""The items of a conversation in /v1/responses: what a client sends, what is stored, and messages for a template."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import PrivateAttr, StrictStr, ValidationError, ValidatorFunctionWrapHandler, model_validator

from app.protocol.chat import Message, ToolCall
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.messages import ChatMessage, ContentPart
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
        """The object as it was sent, unknown fields included."""
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
        """Return the item as a message, if it says anything, with pictures and sounds as markers of `media`.

        Raises RequestError for an unsupported item.
        """
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
        """Return the item as it is stored and listed: with an id, a status, and parts of content.

        Clients that send the whole conversation each time leave ids out: by its `position` in it, an item has the same
        id each time, and is stored once.
        """
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
    """Return the messages of `items`: reasoning, text and calls that follow each other are one answer."""
    messages: list[Message] = []
    for message in (message for item in items for message in item.messages(media)):
        if messages and message.role == "assistant" and can_join(messages[-1], message):
            messages[-1] = join(messages[-1], message)
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
