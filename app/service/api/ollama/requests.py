"""Ollama's request bodies, and the chat turns and engine requests made of them.

Fields are refused where ignoring them would give a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictStr

from app.common.media_formats import MediaKind
from app.engine.grammar.json_grammar import ANY_OBJECT, JsonFormat
from app.engine.request import Request
from app.library.local.recipe import NO_RECIPE, Recipe
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.api.embeddings import MAX_INPUTS
from app.service.api.fields import Body
from app.service.api.messages import (
    ChatMessage,
    FunctionToolBody,
    asked_thinking,
    refuse_unreadable_question,
    tool_options_of,
)
from app.service.api.text_request import NO_LIMITS, OptionsBody, parse_parameters, with_model_defaults
from app.service.generation.chat import ChatTurn
from app.service.generation.media import NO_MEDIA, ContentText, Medium, PromptMedia, joined_parts
from app.service.generation.thinking import Thinking
from app.service.infill_request import FimRequest
from app.service.models.model_file import ModelFile
from app.service.pool.engine_pool import IdleLimit
from app.settings.parsing import parse_duration

_PICTURE_LINE = re.compile(r"^data:image/[a-z.+-]{1,40};base64,[A-Za-z0-9+/]{32,}+={0,2}$", re.MULTILINE)
# An action on a field, a variable or one of Go's words, which in Jinja are at most the names of variables.
_GO_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:[.$]|(?:if|else|range(?!\s*\()|with|end|define|template|block)\b(?!\s*[\[(|]|\.\w))"
)


class ModelBody(Body):
    """A model by name; older clients call it `name`."""

    model: StrictStr | None = None
    name: StrictStr | None = None

    @property
    def model_name(self) -> str:
        return self.model or self.name or ""


class ShowBody(ModelBody):
    verbose: StrictBool | None = None  # with the vocabulary and the tensors


class PullBody(ModelBody):
    stream: bool | None = None


class CopyBody(Body):
    source: StrictStr
    destination: StrictStr


class CreatedMessage(Body):
    """A message that every conversation of a model begins with."""

    role: Literal["system", "user", "assistant"]
    content: StrictStr


class CreateBody(PullBody):
    """The body of /api/create: a model made of a local one, with a recipe of its own."""

    base: StrictStr | None = Field(None, alias="from")
    quantize: StrictStr | None = None
    modelfile: StrictStr | None = None
    files: dict[str, Any] | None = None
    adapters: dict[str, Any] | None = None
    template: StrictStr | None = None
    system: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    messages: list[CreatedMessage] | None = None
    license: StrictStr | list[StrictStr] | None = None

    def check(self) -> None:
        """Raise RequestError for fields that are not supported and would make another model."""
        if self.modelfile:
            raise RequestError("Modelfiles are not supported.", "Send `from`, `system`, `parameters` and so on.")
        for name in ("files", "adapters"):
            if getattr(self, name):
                raise RequestError(f"Creating a model of {name} is not supported.", "Name a local model as `from`.")
        if not self.base:
            raise RequestError("There is no `from`.", "Name the source model.")
        if self.template and _GO_TEMPLATE.search(self.template):
            cause = "The template is a Go template, as Ollama has them, which is not supported."
            raise RequestError(cause, "Give a Jinja template over `messages`, or leave it out.")
        parse_parameters(self.parameters or {})

    def recipe(self, base: str) -> Recipe:
        """Return the recipe of a model made of the one called `base`."""
        licences = [self.license] if isinstance(self.license, str) else self.license or []
        recipe = Recipe(
            system=self.system or "",
            template=self.template or "",
            license="\n\n".join(licences),
            parameters=self.parameters or {},
            messages=tuple(message.model_dump() for message in self.messages or ()),
        )
        return recipe if recipe == NO_RECIPE else replace(recipe, base=base)


class KeepAliveBody(ModelBody):
    """A model that is used, and for how long it stays loaded afterwards."""

    keep_alive: StrictStr | float | None = None

    @property
    def idle_limit(self) -> IdleLimit | None:
        return None if self.keep_alive is None else IdleLimit(parse_duration(self.keep_alive))

    @property
    def unloads(self) -> bool:
        return self.idle_limit == IdleLimit(0)


class OllamaTextBody(KeepAliveBody):
    """The fields that chat and generate share."""

    stream: bool | None = None
    format: StrictStr | dict[str, Any] | None = None
    options: OptionsBody | None = None
    think: StrictBool | StrictStr | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def with_defaults(self, file: ModelFile) -> Self:
        """Return the body with what the model `file` states in options that are not given."""
        return self.model_copy(update={"options": with_model_defaults(self.options or OptionsBody(), file)})

    def how_to_think(self) -> Thinking:
        """Return what `think` says: whether at all, or a level. Raises RequestError for an unknown one."""
        return asked_thinking(self.think) if isinstance(self.think, str) else asked_thinking(is_on=self.think)

    def request(self, prompt: str = "", json_format: JsonFormat | None = None) -> Request:
        """Return the engine's request; the answer is JSON of `json_format`, if that is given. Raises RequestError."""
        options = self.options or OptionsBody()
        return options.new_request(
            prompt,
            json_format,
            None if options.num_predict in NO_LIMITS else options.num_predict,
            n_keep=options.num_keep or 0,
            n_logprobs=self.top_logprobs or 0 if self.logprobs else None,
        )

    def json_format(self) -> JsonFormat | None:
        if not self.format:
            return None
        if isinstance(self.format, dict):
            return JsonFormat(self.format)
        if self.format != "json":
            raise RequestError(f"format is {self.format[:40]!r}.", 'Use "json" or a JSON schema.')
        return ANY_OBJECT


class OllamaMessage(ChatMessage):
    """A message; its tool is named and its arguments are an object where OpenAI has ids and text."""

    content: StrictStr | None = None
    tool_name: StrictStr | None = None
    images: list[StrictStr] | None = None

    def _tool_name(self) -> str | None:
        return self.tool_name or self.name

    def faults(self, media: PromptMedia) -> tuple[RequestError, ...]:
        return tuple(fault for medium in _media(self.images) if (fault := media.fault(medium)))

    def _text(self, media: PromptMedia) -> tuple[str, tuple[int, ...]]:
        return _with_images(self.images, self.content or "", media)


class OllamaChatBody(OllamaTextBody):
    messages: list[OllamaMessage] | None = None
    tools: list[FunctionToolBody] | None = None

    def turn(self, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        """Return the turn of at least one message, with its pictures and sounds in `media`. Raises RequestError for a
        question with what the model cannot be given."""
        messages = self.messages or ()
        refuse_unreadable_question([(message.role, message.faults(media)) for message in messages])
        return ChatTurn(
            messages=[message.message(media) for message in messages],
            request=self.request(),
            media=media,
            tools=tool_options_of((tool.tool() for tool in self.tools or ()), None, None),
            answer_format=self.json_format(),
            thinking=self.how_to_think(),
            continues=True,
        )


class OllamaGenerateBody(OllamaTextBody):
    """The body of /api/generate: a `raw` prompt is continued as it is, others become a message of the user. With a
    suffix the answer is the text between the two."""

    prompt: StrictStr | None = None
    suffix: StrictStr | None = None
    system: StrictStr | None = None
    template: StrictStr | None = None
    context: list[Any] | None = None
    raw: bool | None = None
    images: list[StrictStr] | None = None

    def check(self) -> None:
        """Raise RequestError for fields that would change the answer and are not supported."""
        if self.images and self.suffix:
            raise RequestError("Pictures and a suffix are both given.", "Send one of the two.")
        if self.template:
            raise RequestError("A template in a request is not supported.", "Use raw with the prompt filled in.")
        if self.context:
            raise RequestError("The context of an earlier answer is not supported.", "Send messages to /api/chat.")

    @property
    def fim_request(self) -> FimRequest | None:
        return FimRequest(prefix=self.prompt or "", suffix=self.suffix) if self.suffix else None

    def turn(self, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        """Return the turn of a prompt that is not raw, with its pictures in `media`. Raises RequestError as `check`."""
        system = [Message("system", self.system)] if self.system else []
        return ChatTurn(
            messages=[*system, Message("user", self._prompt(media))],
            request=self.request(),
            media=media,
            answer_format=self.json_format(),
            thinking=self.how_to_think(),
        )

    def raw_request(self, media: PromptMedia) -> tuple[Request, PromptMedia]:
        """Return the engine's request for a raw prompt, and what stands in it. Raises RequestError as `turn`."""
        return self.request(self._prompt(media), self.json_format()), media

    def _prompt(self, media: PromptMedia) -> str:
        for medium in _media(self.images):
            if fault := media.fault(medium):
                raise fault
        return _with_images(self.images, self.prompt or "", media)[0]


def _media(images: Sequence[str] | None) -> list[Medium]:
    return [Medium.of(image) for image in images or ()]


def _with_images(images: Sequence[str] | None, text: str, media: PromptMedia) -> tuple[str, tuple[int, ...]]:
    """Return `text` with pictures before it (source: server/prompt.go of Ollama, `chatPrompt`), notes after it, and
    where these parts end."""
    parts = [media.part_of(medium) for medium in _media(images)]
    notes = [part for part in parts if not part.is_marker]
    return joined_parts([*(part for part in parts if part.is_marker), *_texts(text, media), *notes], "\n")


def _texts(text: str, media: PromptMedia) -> Iterator[ContentText]:
    """Yield `text`, and pictures in it for a model that sees: Cline (3) writes those of its user as lines of text."""
    end = 0
    for match in _PICTURE_LINE.finditer(text) if media.senses.sees else ():
        yield ContentText(text[end : match.start()])
        yield media.part_of(Medium(MediaKind.PICTURE, match.group()))
        end = match.end()
    yield ContentText(text[end:])


class EmbedBody(KeepAliveBody):
    """The body of /api/embed, and of the older /api/embeddings with its one `prompt`, which is never truncated."""

    input: StrictStr | Annotated[list[StrictStr], Field(max_length=MAX_INPUTS)] | None = None
    prompt: StrictStr | None = None
    dimensions: int | None = None
    truncate: bool | None = None
    options: dict[str, Any] | None = None  # none of them changes a vector

    def inputs(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else list(self.input or ())
