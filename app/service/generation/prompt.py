"""Chat messages and an offer of tools -> the prompt of one model, and how its answer is to be read.

Owns who tells the model of tools: its chat template where that knows them and calls come in a form known here, else a
message in words. Knows nothing of engines or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.service.generation.reasoning import NO_REASONING, ReasoningTags, reasoning_tags_of
from app.service.models.model_file import ModelFile
from app.service.tools.formats import GENERIC, ToolFormat, tool_format_of
from app.service.tools.instructions import as_plain_messages, with_instructions
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import NO_TOOLS, ToolOptions

__all__ = ["NO_VARIABLES", "Prompt", "TemplateRenderer", "make_prompt"]

Messages = Sequence[dict[str, Any]]
NO_VARIABLES: Mapping[str, Any] = {}


class TemplateRenderer(Protocol):
    """Fills a model's chat template; see `app.engine.chat_template.template_process`."""

    async def render(
        self, template: str, messages: Messages, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text for the engine; `add_special` is False when the text begins with the model's first token already.

    `thinking` is how the model marks what it thinks before it answers, `calling` how it calls the tools it was offered.
    """

    text: str
    add_special: bool
    thinking: ReasoningTags = NO_REASONING
    calling: ToolCalling | None = None

    @property
    def visible_tags(self) -> tuple[str, ...]:
        """The tags that tell thoughts and calls apart, which may be special tokens."""
        thinking = (self.thinking.opening, self.thinking.closing) if self.thinking.opening else ()
        return (*thinking, *(self.calling.family.tags if self.calling else ()))


async def make_prompt(
    renderer: TemplateRenderer,
    file: ModelFile,
    messages: Messages,
    offer: ToolOptions = NO_TOOLS,
    variables: Mapping[str, Any] = NO_VARIABLES,
) -> Prompt:
    """Return `messages` as the model of `file` was trained on them. Raises RequestError when its template refuses.

    `variables` are what its template is told beside them, such as enable_thinking.
    """
    fill = _Filling(renderer, file, variables)
    family = tool_format_of(file.chat_template)
    if family is None:
        family = GENERIC
        messages = as_plain_messages(messages, family)
        text = await fill(with_instructions(messages, family, offer), None)
    else:
        text = await _with_tools(fill, messages, family, offer)
    add_special = not (file.bos_token and text.startswith(file.bos_token))
    calling = ToolCalling(family, offer) if offer.tools else None
    return Prompt(text, add_special, reasoning_tags_of(file.chat_template, text), calling)


async def _with_tools(fill: _Filling, messages: Messages, family: ToolFormat, offer: ToolOptions) -> str:
    """Return the prompt of a template that writes calls; some that do tell of no tools all the same."""
    tools = [tool.for_template() for tool in offer.tools] or None
    text = await fill(messages, tools)
    if all(tool.name in text for tool in offer.tools):
        return text
    return await fill(with_instructions(messages, family, offer), None)


@dataclass(frozen=True, slots=True)
class _Filling:
    """The template of `file` with `variables`, to be filled."""

    renderer: TemplateRenderer
    file: ModelFile
    variables: Mapping[str, Any]

    async def __call__(self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None) -> str:
        return await self.renderer.render(
            self.file.chat_template,
            messages,
            bos_token=self.file.bos_token,
            eos_token=self.file.eos_token,
            tools=tools,
            **self.variables,
        )
