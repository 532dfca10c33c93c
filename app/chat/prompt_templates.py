"""Known prompt templates for models that have none, and plain completion. Pure.

A base model only continues text: with `completion` the chat is that text; a template marks whose turn it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.protocol.chat import Message

COMPLETION = "completion"
COMPLETION_TOKENS = 256  # a base model seldom ends by itself; /continue goes on


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The text before and after each turn, by role; an answer ends with one of `stops`.

    A template whose `system` is None puts the system prompt before the first question, as its model was trained.
    """

    meaning: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str] | None
    stops: tuple[str, ...]

    def render(self, turns: Sequence[Message]) -> str:
        """Return the prompt: every turn, and the beginning of the answer, or the answer to continue without an end."""
        ends_open = turns[-1].role == "assistant"
        whole = turns[:-1] if ends_open else turns
        text = "".join(self._turn(turn) for turn in (whole if self.system else _with_system_in_question(whole)))
        return text + self.assistant[0] + (turns[-1].content if ends_open else "")

    def _turn(self, turn: Message) -> str:
        before, after = {"user": self.user, "assistant": self.assistant, "system": self.system or ("", "")}[turn.role]
        return f"{before}{turn.content}{after}"


def _marked(meaning: str, before: str, after: str, stops: tuple[str, ...]) -> PromptTemplate:
    """Return a template that writes each role's name into one pair of marks."""
    user, assistant, system = ((before.format(role), after) for role in ("user", "assistant", "system"))
    return PromptTemplate(meaning, user, assistant, system, stops)


# Sources: the chat templates of Qwen 2.5, Llama 3.1, Gemma 2 and Mistral 7B Instruct; the prompts of Stanford Alpaca.
TEMPLATES: Mapping[str, PromptTemplate] = {
    "chatml": _marked(
        "ChatML: Qwen, Yi, SmolLM and many others", "<|im_start|>{}\n", "<|im_end|>\n", ("<|im_end|>", "<|im_start|>")
    ),
    "llama3": _marked(
        "Llama 3", "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", ("<|eot_id|>", "<|start_header_id|>")
    ),
    "gemma": PromptTemplate(
        "Gemma 1 to 3",
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        system=None,
        stops=("<end_of_turn>", "<start_of_turn>"),
    ),
    "mistral": PromptTemplate(
        "Mistral and Mixtral Instruct",
        user=("[INST] ", " [/INST]"),
        assistant=("", "</s>"),
        system=None,
        stops=("</s>", "[INST]"),
    ),
    "alpaca": PromptTemplate(
        "Alpaca: plain headings, for models that know no marks",
        user=("### Instruction:\n", "\n\n"),
        assistant=("### Response:\n", "\n\n"),
        system=("", "\n\n"),
        stops=("### Instruction:", "### Response:"),
    ),
}
TEMPLATE_MEANINGS: Mapping[str, str] = {
    COMPLETION: f"the model continues your text, {COMPLETION_TOKENS} tokens at a time",
    **{name: template.meaning for name, template in TEMPLATES.items()},
}


def render_prompt(template: str, turns: Sequence[Message]) -> str:
    """Return `turns` as one text, up to where the answer goes on. `template` is a name of TEMPLATE_MEANINGS."""
    return _continued(turns) if template == COMPLETION else TEMPLATES[template].render(turns)


def template_stops(template: str) -> tuple[str, ...]:
    """Return the texts that end an answer."""
    return () if template == COMPLETION else TEMPLATES[template].stops


def _continued(turns: Sequence[Message]) -> str:
    """Return the texts of the turns: an answer goes on where its question ends, a later question on a new line."""
    text = ""
    for turn in turns:
        if turn.role != "assistant" and text and not text.endswith("\n"):
            text += "\n"
        text += turn.content
    return text


def _with_system_in_question(turns: Sequence[Message]) -> list[Message]:
    if len(turns) < 2 or turns[0].role != "system":
        return list(turns)
    system, question, *others = turns
    return [Message(question.role, f"{system.content}\n\n{question.content}"), *others]
