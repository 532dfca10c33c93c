"""A turn of a conversation, whatever the dialect: messages and wishes -> what is asked of the model.

Owns how prompt, tools and thoughts come together in one generation. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.engine.request import Request
from app.service.generation.generation import Answer, Generation
from app.service.generation.prompt import Prompt
from app.service.generation.reasoning import NO_REASONING
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from app.service.tools.tool import NO_TOOLS, ToolOptions
from quantizer.errors import RequestError

__all__ = ["ChatTurn", "chat_generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """`messages` as chat templates know them, to be answered by `n_answers` of `request`, which has no prompt yet.

    `variables` are what the template is told beside them. Unless `separates_reasoning` a thought is part of the text.
    With `continues` an answer goes on from the last message where that is the assistant's own.

    Raises RequestError where the answer would have to keep another grammar than that of calls.
    """

    messages: Sequence[dict[str, Any]]
    request: Request
    offer: ToolOptions = NO_TOOLS
    n_answers: int = 1
    variables: Mapping[str, Any] = field(default_factory=dict)
    separates_reasoning: bool = True
    continues: bool = False

    def __post_init__(self) -> None:
        if self.offer.tools and self.request.sampling.grammar:
            raise RequestError(
                "Both tools and a form of the answer are given.", "Set tool_choice to none, or leave one."
            )

    @property
    def begun(self) -> str:
        """What the answer goes on from."""
        last = self.messages[-1]
        is_answer = last["role"] == "assistant" and "tool_calls" not in last
        return (last["content"] or "") if self.continues and is_answer else ""

    def requests(self, prompt: Prompt) -> tuple[Request, ...]:
        """Return the engine's requests, with `prompt`. Raises RequestError for a call that cannot be enforced."""
        request = replace(
            self.request, prompt=prompt.text, add_special=prompt.add_special, visible_tags=prompt.visible_tags
        )
        if prompt.calling and (grammar := prompt.calling.grammar(prompt.thinking)):
            request = replace(request, sampling=replace(request.sampling, grammar=grammar))
        return request.variants(self.n_answers)


async def chat_generation(models: ModelManager, model: ServedModel, turn: ChatTurn) -> Generation:
    """Return what `turn` asks of `model`. Raises RequestError where its template refuses the messages."""
    prompt = await prompt_of(models, model, turn)
    requests = turn.requests(prompt)

    def anticipate(answer: Answer) -> None:
        if not (answer.calls or turn.begun):  # else a tool answers, not the user, or the message is not whole
            said = [*turn.messages, {"role": "assistant", "content": answer.text}]
            models.anticipate(model, requests[0], said, turn.offer, turn.variables)

    thinking = prompt.thinking if turn.separates_reasoning else NO_REASONING
    return Generation(requests, thinking, prompt.calling, anticipate)


async def prompt_of(models: ModelManager, model: ServedModel, turn: ChatTurn) -> Prompt:
    """Return the prompt of `turn`, up to where the answer goes on. Raises RequestError as the template does."""
    if not turn.begun:
        return await models.prompt(model, turn.messages, turn.offer, turn.variables)
    prompt = await models.prompt(model, turn.messages[:-1], turn.offer, turn.variables)
    thought = prompt.thinking.closing if prompt.thinking.is_open else ""  # the answer has begun, so that is over
    return replace(prompt, text=f"{prompt.text}{thought}{turn.begun}", thinking=NO_REASONING)
