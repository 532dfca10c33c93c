"""A conversation of LM Studio's SDK as messages in OpenAI's form, or as a text, and the pictures uploaded for it.

Clients send back what they were sent, so reasoning lies in an assistant's text, tags included. Source: lmstudio-js
2.0.0, `chatMessageDataSchema` and `LLMPromptTemplate`.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import StrictInt, StrictStr

from app.service.api.fields import Body

MAX_CHARACTERS = 64 << 20  # of Base64


class UploadedFiles:
    """The latest files in Base64, in memory, by identifiers that nobody can guess."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, str] = OrderedDict()

    def add(self, base64: str) -> str:
        """Hold a file and return its identifier; the oldest ones leave."""
        identifier = secrets.token_hex(16)
        self._files[identifier] = base64
        while len(self._files) > 1 and sum(map(len, self._files.values())) > MAX_CHARACTERS:
            self._files.popitem(last=False)
        return identifier

    def get(self, identifier: str) -> str:
        """Return a file in Base64, "" for one that is not held any more."""
        return self._files.get(identifier, "")


NO_FILES = UploadedFiles()  # nothing is ever added to it


OPENING_TAG, CLOSING_TAG = "<think>", "</think>"  # of every model's reasoning in the fragments of an answer

Message = dict[str, Any]


class _ToolCall(Body):
    id: StrictStr = ""
    name: StrictStr = ""
    arguments: dict[str, Any] | None = None

    def message(self) -> Message:
        function = {"name": self.name, "arguments": self.arguments or {}}
        return {"id": self.id, "type": "function", "function": function}


class _Part(Body):
    """A part of a message: text, a file, a call, or the result of one, by its `type`."""

    type: StrictStr
    text: StrictStr = ""
    name: StrictStr = ""
    fileType: StrictStr = ""  # noqa: N815
    identifier: StrictStr = ""
    sizeBytes: StrictInt = 0  # noqa: N815
    toolCallRequest: _ToolCall = _ToolCall()  # noqa: N815
    content: StrictStr = ""
    toolCallId: StrictStr = ""  # noqa: N815

    def content_part(self, files: UploadedFiles) -> dict[str, Any]:
        """Return the part in OpenAI's form, a picture as it is in `files`."""
        if self.type == "file" and self.fileType == "image":
            return {"type": "image_url", "image_url": {"url": files.get(self.identifier)}}
        return {"type": "text" if self.type == "text" else self.type, "text": self.text}


class _Message(Body):
    role: Literal["assistant", "user", "system", "tool"]
    content: list[_Part]

    def messages(self, files: UploadedFiles) -> Iterator[Message]:
        """Yield the message in OpenAI's form; the results of several calls are a message each."""
        if self.role == "tool":
            for part in self.content:
                yield {
                    "role": "tool",
                    "content": part.content,
                    "tool_call_id": part.toolCallId,
                    "name": part.name or None,
                }
            return
        parts = [part for part in self.content if part.type != "toolCallRequest"]
        is_text = all(part.type == "text" for part in parts)
        content = "".join(part.text for part in parts) if is_text else [part.content_part(files) for part in parts]
        message: Message = {"role": self.role, "content": content}
        if self.role == "assistant":
            message |= _without_reasoning("".join(part.text for part in parts))
            if calls := [part.toolCallRequest.message() for part in self.content if part.type == "toolCallRequest"]:
                message["tool_calls"] = calls
        yield message


class ChatHistory(Body):
    """A conversation."""

    messages: list[_Message]

    def openai_messages(self, system_prompt: str = "", files: UploadedFiles = NO_FILES) -> list[Message]:
        """Return the conversation in OpenAI's form, after a `system_prompt` of the configuration, with its `files`."""
        first = [{"role": "system", "content": system_prompt}] if system_prompt else []
        return [*first, *(message for item in self.messages for message in item.messages(files))]


class _Jinja(Body):
    template: StrictStr
    bosToken: StrictStr = ""  # noqa: N815
    eosToken: StrictStr = ""  # noqa: N815


class ManualTemplate(Body):
    """The texts before and after the messages of each role."""

    beforeSystem: StrictStr = ""  # noqa: N815
    afterSystem: StrictStr = ""  # noqa: N815
    beforeUser: StrictStr = ""  # noqa: N815
    afterUser: StrictStr = ""  # noqa: N815
    beforeAssistant: StrictStr = ""  # noqa: N815
    afterAssistant: StrictStr = ""  # noqa: N815

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt of `messages`, up to where the answer begins."""
        around = {
            "system": (self.beforeSystem, self.afterSystem),
            "user": (self.beforeUser, self.afterUser),
            "assistant": (self.beforeAssistant, self.afterAssistant),
            "tool": (self.beforeUser, self.afterUser),
        }
        written = [f"{around[item['role']][0]}{item['content'] or ''}{around[item['role']][1]}" for item in messages]
        return "".join((*written, self.beforeAssistant))


class PromptTemplate(Body):
    """A template of the client in place of the model's; text completion of the Python SDK 1.5 sends one."""

    type: Literal["jinja", "manual"]
    jinjaPromptTemplate: _Jinja | None = None  # noqa: N815
    manualPromptTemplate: ManualTemplate | None = None  # noqa: N815
    stopStrings: tuple[StrictStr, ...] = ()  # noqa: N815


def _without_reasoning(text: str) -> Message:
    """Return the fields of an assistant's text, in which reasoning may come first."""
    if not text.startswith(OPENING_TAG) or CLOSING_TAG not in text:
        return {"content": text}
    reasoning, _, answer = text.removeprefix(OPENING_TAG).partition(CLOSING_TAG)
    return {"content": answer.lstrip("\n"), "reasoning_content": reasoning.strip("\n")}
