"""Anthropic's request body, and the chat turn made of it.

Fields are refused where ignoring them would give a wrong answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictStr

from app.common.media_formats import MediaKind
from app.engine.grammar.json_grammar import JsonFormat
from app.protocol.chat import Message, ToolCall
from app.protocol.errors import RequestError
from app.service.api.anthropic.tools import AnthropicToolBody
from app.service.api.app_state import RefusedContent
from app.service.api.fields import Body, RawBody
from app.service.api.messages import (
    TemplateVariablesBody,
    ThinkingOptions,
    asked_thinking,
    joined_reasoning,
    refuse_unreadable_question,
)
from app.service.api.text_request import SamplingBody
from app.service.generation.chat import ChatTurn
from app.service.generation.compaction import summary_message
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
from app.service.generation.message_order import PARAGRAPH_BREAK
from app.service.tools.parser import NO_TOOLS, ToolOptions

# Thoughts, calls and their results are added by themselves.
_TYPES_WITHOUT_TEXT = ("thinking", "redacted_thinking", "tool_use", "tool_result", "compaction")
_ENDINGS = {"application/pdf": ".pdf", "text/plain": ".txt"}
CALL_ID_PREFIX = "toolu_"  # before the ids that templates use

# A line of Claude Code for Anthropic's accounts; it changes with each request, so that no cached prefix would match.
_BILLING = "x-anthropic-billing-header:"


class DocumentSource(Body):
    """The content of a document or a picture. Of documents only text is read."""

    type: StrictStr = ""
    media_type: StrictStr = ""
    data: StrictStr = ""
    url: StrictStr = ""
    file_id: StrictStr = ""
    content: StrictStr | list[ContentBlock] | None = None


class ContentBlock(Body):
    """A part of a message; its type decides which fields count."""

    type: StrictStr
    text: StrictStr = ""
    thinking: StrictStr = ""
    id: StrictStr = ""
    name: StrictStr = ""
    input: dict[str, Any] | None = None
    tool_use_id: StrictStr = ""
    content: StrictStr | list[ContentBlock] | dict[str, Any] | None = None
    is_error: bool | None = None
    title: StrictStr | None = None
    context: StrictStr | None = None
    tool_name: StrictStr = ""
    source: DocumentSource | StrictStr | None = None

    @property
    def medium(self) -> Medium | None:
        """The picture, None for anything else; one that is only named (`file_id`) has no content."""
        if self.type != "image":
            return None
        source = self.source if isinstance(self.source, DocumentSource) else DocumentSource()
        return Medium(MediaKind.PICTURE, source.url if source.type == "url" else source.data)

    @property
    def document(self) -> Document | None:
        """The document that is given as a file, None for anything else."""
        source = self.source
        if self.type != "document" or not isinstance(source, DocumentSource) or source.type != "base64":
            return None
        ending = _ENDINGS.get(source.media_type, "")
        return Document(self.title or f"document{ending}", source.data) if source.data else None

    def fault(self, media: PromptMedia) -> RequestError | None:
        """Return why the model cannot be given the block, None for one that is text, or has it, or is handled apart."""
        if self.type in (*_TYPES_WITHOUT_TEXT, *_TEXTS) or self._document_text(media):
            return None
        if self.document:
            return media.document_fault(self.document)
        return media.fault(self.medium) if self.medium else UnreadableError(self.type, media.senses)

    def content_text(self, media: PromptMedia) -> ContentText:
        """Return the text, the marker of a picture, or the note in place of a file or a result of their servers."""
        if self.type in _TYPES_WITHOUT_TEXT:
            return ContentText("")
        if self.type in _TEXTS:
            return ContentText(_TEXTS[self.type](self, media))
        if self.medium:
            return media.part_of(self.medium)
        context = f"{self.context}\n" if self.context else ""  # what the client says of the document
        if self.document and media.reads_documents:
            return ContentText(context + media.document_part(self.document).text)
        document = self._document_text(media)
        title = f"{self.title}\n" if document and self.title else ""
        note = note_of_unreadable(self.type, self.title or "", media.senses)
        return ContentText(f"{title}{context}{document or note}")

    def _document_text(self, media: PromptMedia) -> str:
        source = self.source
        if self.type != "document" or not isinstance(source, DocumentSource):
            return ""
        if source.type == "content":
            return _text(source.content, media)
        return source.data if source.type == "text" else ""

    @property
    def summary(self) -> str:
        """The text that stands for earlier messages, none of a compaction that failed."""
        return self.content if self.type == "compaction" and isinstance(self.content, str) else ""

    def call(self) -> ToolCall:
        arguments = json.dumps(self.input or {}, ensure_ascii=False)
        return ToolCall(self.id.removeprefix(CALL_ID_PREFIX), self.name, arguments)

    def result(self, media: PromptMedia) -> Message:
        text = _text(self.content, media)
        if self.is_error and "error" not in text.lower():  # most results of failed calls say so themselves
            text = f"Error: {text}"
        return Message("tool", text, call_id=self.tool_use_id.removeprefix(CALL_ID_PREFIX))


def _text_of_search_result(block: ContentBlock, media: PromptMedia) -> str:
    source = block.source if isinstance(block.source, str) else ""
    return "\n".join(filter(None, (block.title, source, _text(block.content, media))))


_TEXTS: Mapping[str, Callable[[ContentBlock, PromptMedia], str]] = {
    "text": lambda block, _: block.text,
    "search_result": _text_of_search_result,
    "tool_reference": lambda block, _: block.tool_name,  # a tool that Claude Code found by a search
}


class AnthropicMessage(Body):
    """A message of the conversation; system messages may be anywhere."""

    role: Literal["user", "assistant", "system"]
    content: StrictStr | list[ContentBlock]
    clear_at: Literal["next_user_message", "never"] | None = None

    @property
    def blocks(self) -> list[ContentBlock]:
        return [] if isinstance(self.content, str) else self.content

    def pictures(self) -> list[tuple[ContentBlock, Medium]]:
        """Return the pictures, those in results of tools too."""
        blocks = self.blocks
        inner = [block.content for block in blocks if isinstance(block.content, list)]
        every = [*blocks, *(block for content in inner for block in content)]
        return [(block, medium) for block in every if (medium := block.medium)]

    def faults(self, media: PromptMedia) -> list[tuple[ContentBlock, RequestError]]:
        return [(block, fault) for block in self.blocks if (fault := block.fault(media))]

    def turn(self, media: PromptMedia, refused: RefusedContent) -> tuple[str, tuple[RequestError, ...]]:
        """Return the role, "tool" for results of tools, and the faults of its blocks but those in `refused`."""
        is_result = any(block.type == "tool_result" for block in self.blocks)
        faults = (fault for block, fault in self.faults(media) if not refused.is_known(block.model_dump_json()))
        return "tool" if is_result else self.role, tuple(faults)

    def messages(self, media: PromptMedia) -> list[Message]:
        """Return the message; results of calls are messages before it."""
        results = [block.result(media) for block in self.blocks if block.type == "tool_result"]
        calls = tuple(block.call() for block in self.blocks if block.type == "tool_use")
        summaries = [summary_message(text) for block in self.blocks if (text := block.summary)]
        thoughts = joined_reasoning(block.thinking for block in self.blocks) if self.role == "assistant" else ""
        text, part_ends = _text_parts(self.content, media)
        own = Message(self.role, text, calls=calls, reasoning=thoughts, part_ends=part_ends)
        if calls:
            return [*summaries, own]
        before = [*summaries, *results]
        return [*before, own] if own.content or not before else before


class AnthropicToolChoiceBody(Body):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr = ""
    disable_parallel_tool_use: bool | None = None


class OutputFormatBody(Body):
    type: StrictStr
    schema_: Any = Field(None, alias="schema")


class OutputConfigBody(Body):
    format: OutputFormatBody | None = None
    effort: StrictStr | None = None

    def json_format(self) -> JsonFormat | None:
        if self.format is None:
            return None
        if self.format.type != "json_schema":
            raise RequestError(f"output_config.format is {self.format.type[:40]!r}.", "Use json_schema.")
        return JsonFormat(self.format.schema_)


class ThreadBody(Body):
    """Whether the answer begins a conversation that the service holds, or which answer it goes on from."""

    type: Literal["create", "continue"]
    previous_message_id: StrictStr = ""

    @property
    def continued(self) -> str:
        """The id of the answer that the thread goes on from, "" for a new one."""
        return self.previous_message_id if self.type == "continue" else ""


class CompactionBody(Body):
    type: Literal["summarize"] = "summarize"
    instructions: StrictStr | None = None


_CHANGES = ("tool_addition", "tool_removal")  # of the tools, in the middle of a conversation


class CountTokensBody(RawBody, SamplingBody, TemplateVariablesBody):
    """The body of /v1/messages/count_tokens, whose messages are those of a prompt."""

    model: StrictStr | None = None
    messages: list[AnthropicMessage]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    system: StrictStr | list[ContentBlock] | None = None
    max_tokens: int | None = None
    stop_sequences: list[StrictStr] | None = None
    stream: bool | None = None
    tools: list[AnthropicToolBody] | None = None
    tool_choice: AnthropicToolChoiceBody | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfigBody | None = None
    thread: ThreadBody | None = None
    compaction: CompactionBody | None = None

    def refuse_unreadable_question(self, media: PromptMedia, refused: RefusedContent) -> None:
        """Raise RequestError for what the user has just sent and the model cannot be given, and put it in `refused`."""
        try:
            refuse_unreadable_question([item.turn(media, refused) for item in self.messages])
        except (
            RequestError
        ):  # once: Claude Code (2.1) keeps a refused picture and adds the next question to its message
            for block, _ in (found for item in self.messages for found in item.faults(media)):
                refused.add(block.model_dump_json())
            raise

    def leave_out_refused(self, media: PromptMedia, refused: RefusedContent) -> None:
        """Leave out of `media` what is in `refused`, because the engine could not read it."""
        blocks = [] if refused.is_empty else [block for item in self.messages for block in item.pictures()]
        for block, medium in blocks:
            if refused.is_known(block.model_dump_json()):
                media.leave_out(medium)

    def remember_refused(self, refused: RefusedContent) -> None:
        for block, _ in self.messages[-1].pictures():
            refused.add(block.model_dump_json())

    def turn(self, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        """Return the chat turn, with its pictures in `media`. Raises RequestError for unsupported fields."""
        self._check()
        text = self.system or ""
        if not isinstance(text, str):
            text = _text([block for block in text if not block.text.startswith(_BILLING)], media)
        system = [Message("system", text)] if text else []
        options = self.thinking or ThinkingOptions(type="disabled")  # without it Anthropic's models do not think
        effort = self.output_config.effort if self.output_config else None
        asked = asked_thinking(effort, options.is_on, options.budget_tokens, self.chat_template_kwargs)
        last_question = max((n for n, item in enumerate(self.messages) if item.role == "user"), default=-1)
        messages = [
            message
            for number, item in enumerate(self.messages)
            if item.clear_at != "next_user_message" or number > last_question
            for message in item.messages(media)
        ]
        return ChatTurn(
            messages=[*system, *messages],
            request=self.new_request("", None, self.max_tokens),
            media=media,
            tools=self._tool_options(),
            answer_format=self.output_config.json_format() if self.output_config else None,
            thinking=replace(asked, is_assumed=self.thinking is None),
            continues=True,
        )

    def _check(self) -> None:
        """Raise RequestError for what Anthropic's API refuses, and for what would be lost."""
        if not self.messages:
            raise RequestError("messages is empty.", "Send at least one message.")
        called: set[str] = set()
        for block in (block for message in self.messages for block in message.blocks):
            if block.type == "tool_use":
                called.add(block.id)
            elif block.type == "tool_result" and block.tool_use_id not in called:
                cause = (
                    f"A tool_result has the tool_use_id {block.tool_use_id[:80]!r}, which no tool_use before it has."
                )
                raise RequestError(cause, "Send the call that it answers before it.")
            elif block.type in _CHANGES:
                raise RequestError(f"{block.type} is not supported.", "Send the tools that are in force as tools.")

    def stop_strings(self) -> tuple[str, ...]:
        return tuple(text for text in self.stop_sequences or () if text)

    def _tool_options(self) -> ToolOptions:
        choice = self.tool_choice or AnthropicToolChoiceBody(type="auto")
        if choice.type == "none":
            return NO_TOOLS
        return ToolOptions(
            tools=tuple(tool for body in self.tools or () if (tool := body.tool()) is not None),
            must_call=choice.type in ("any", "tool"),
            only=choice.name if choice.type == "tool" else "",
            is_parallel=None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use,
        )


class MessagesBody(CountTokensBody):
    """The body of /v1/messages. A limit of 0 reads the prompt into the cache and writes nothing."""

    max_tokens: Annotated[int, Field(ge=0)]


_Content: TypeAlias = str | Sequence[ContentBlock] | Mapping[str, Any] | None


def _text(content: _Content, media: PromptMedia) -> str:
    return _text_parts(content, media)[0]


def _text_parts(content: _Content, media: PromptMedia) -> tuple[str, tuple[int, ...]]:
    if content is None or isinstance(content, str | Mapping):
        return content if isinstance(content, str) else "", ()
    return joined_parts((block.content_text(media) for block in content), PARAGRAPH_BREAK)
