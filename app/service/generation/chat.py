"""One turn of a conversation in any dialect: messages and tools to a prompt, and the prompt to a generation.

Owns how the model learns of tools: by its chat template if that knows them and writes calls in a known form, else by
instructions in a message. Independent of HTTP and of dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.engine.request import Request
from app.service.generation.generation import Answer, Generation
from app.service.generation.reasoning import NO_REASONING, ReasoningTags, reasoning_tags_of
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel, TemplateRenderer
from app.service.tools.formats import GENERIC, tool_format_of
from app.service.tools.instructions import as_plain_messages, with_instructions
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import NO_TOOLS, ToolOptions
from quantizer.errors import RequestError

__all__ = ["ChatTurn", "Prompt", "chat_generation", "make_prompt", "prompt_of"]

Messages = Sequence[dict[str, Any]]
NO_VARIABLES: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text for the engine; `add_special` is False when the text begins with the model's first token already.

    `tags` mark the model's reasoning, `tool_calling` its calls of the tools it was offered.
    """

    text: str
    add_special: bool
    tags: ReasoningTags = NO_REASONING
    tool_calling: ToolCalling | None = None

    @property
    def visible_tags(self) -> tuple[str, ...]:
        """The tags of reasoning and calls, which may be special tokens."""
        reasoning = (self.tags.opening, self.tags.closing) if self.tags.opening else ()
        return (*reasoning, *(self.tool_calling.tool_format.tags if self.tool_calling else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """`messages` in the form of chat templates, to be answered by `n_answers` of `request`, which has no prompt yet.

    `variables` go to the template. Unless `separates_reasoning`, reasoning is part of the text. With `continues` an
    answer continues the last message, if that is the assistant's.

    Raises RequestError for tools together with a grammar of the answer.
    """

    messages: Messages
    request: Request
    tools: ToolOptions = NO_TOOLS
    n_answers: int = 1
    variables: Mapping[str, Any] = field(default_factory=dict)
    separates_reasoning: bool = True
    continues: bool = False

    def __post_init__(self) -> None:
        if self.tools.tools and self.request.sampling.grammar:
            raise RequestError(
                "Both tools and a form of the answer are given.", "Set tool_choice to none, or leave one."
            )

    @property
    def begun(self) -> str:
        """The text that the answer continues."""
        last = self.messages[-1]
        is_answer = last["role"] == "assistant" and "tool_calls" not in last
        return (last["content"] or "") if self.continues and is_answer else ""

    def requests(self, prompt: Prompt) -> tuple[Request, ...]:
        """Return the engine's requests, with `prompt`. Raises RequestError for a call that cannot be enforced."""
        request = replace(
            self.request, prompt=prompt.text, add_special=prompt.add_special, visible_tags=prompt.visible_tags
        )
        if prompt.tool_calling and (grammar := prompt.tool_calling.grammar(prompt.tags)):
            request = replace(request, sampling=replace(request.sampling, grammar=grammar))
        return request.variants(self.n_answers)


async def chat_generation(model: ServedModel, turn: ChatTurn) -> Generation:
    """Return the generation of `turn` on `model`. Raises RequestError where its template refuses the messages."""
    prompt = await prompt_of(model, turn)
    requests = turn.requests(prompt)

    def prefill_next(answer: Answer) -> None:
        if answer.calls or turn.begun:  # a tool answers next, or the message is not whole
            return
        history = [*turn.messages, {"role": "assistant", "content": answer.text}]

        async def prompt_after(text: str) -> str:
            return (await _prompt(model, turn, [*history, {"role": "user", "content": text}])).text

        model.prefill_ahead(requests[0], prompt_after)

    tags = prompt.tags if turn.separates_reasoning else NO_REASONING
    return Generation(requests, tags, prompt.tool_calling, prefill_next)


async def prompt_of(model: ServedModel, turn: ChatTurn) -> Prompt:
    """Return the prompt of `turn`, up to where the answer goes on. Raises RequestError as the template does."""
    if not turn.begun:
        return await _prompt(model, turn, turn.messages)
    prompt = await _prompt(model, turn, turn.messages[:-1])
    closing = prompt.tags.closing if prompt.tags.is_open else ""  # the answer has begun, so reasoning is over
    return replace(prompt, text=f"{prompt.text}{closing}{turn.begun}", tags=NO_REASONING)


async def _prompt(model: ServedModel, turn: ChatTurn, messages: Messages) -> Prompt:
    if not model.file.chat_template:
        raise RequestError(f"{model.ref.id} has no chat template.", "Use /v1/completions with it.")
    messages = model.file.recipe.begin(messages)
    return await make_prompt(model.renderer, model.file, messages, turn.tools, turn.variables)


async def make_prompt(
    renderer: TemplateRenderer,
    file: ModelFile,
    messages: Messages,
    tools: ToolOptions = NO_TOOLS,
    variables: Mapping[str, Any] = NO_VARIABLES,
) -> Prompt:
    """Return `messages` in the form that the model of `file` was trained on, with `variables` for its template.

    Raises RequestError where the template refuses them.
    """

    async def render(messages: Messages, functions: Sequence[Mapping[str, Any]] | None) -> str:
        tokens = {"bos_token": file.bos_token, "eos_token": file.eos_token}
        return await renderer.render(file.chat_template, messages, **{**tokens, "tools": functions, **variables})

    known = tool_format_of(file.chat_template)
    tool_format = known or GENERIC
    if known is None:
        messages = as_plain_messages(messages, tool_format)
        text = await render(with_instructions(messages, tool_format, tools), None)
    else:
        text = await render(messages, [tool.for_template() for tool in tools.tools] or None)
        if not all(tool.name in text for tool in tools.tools):  # some templates that write calls list no tools
            text = await render(with_instructions(messages, tool_format, tools), None)
    add_special = not (file.bos_token and text.startswith(file.bos_token))
    tool_calling = ToolCalling(tool_format, tools) if tools.tools else None
    return Prompt(text, add_special, reasoning_tags_of(file.chat_template, text), tool_calling)
