"""How a chat is answered: prompt templates for models that have none, and the options of its answers. Pure.

A base model only continues text: with `completion` the chat is that text; a template marks whose turn it is. The
options' names, kinds, bounds and parsing are made of the engine's declaration: a new sampler of `app.protocol.sampling`
appears here by itself. Stored and imported chats may have anything under these names: `valid_options` returns only what
is valid. Lists and schemas are stored as JSON.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from app.chat.conversation import Scalar
from app.protocol.chat import GenerationOptions, Message
from app.protocol.sampling import (
    HTTP_NAMES,
    MAX_GRAMMAR_BYTES,
    NUMBER_RANGES,
    NUMBER_TYPES,
    SAMPLER_DESCRIPTIONS,
    USUAL_RANGES,
    ModelSampling,
    SamplingOptions,
)
from quantizer.figures import format_number
from quantizer.system.errors import UsageError

COMPLETION = "completion"
COMPLETION_TOKENS = 256  # a base model seldom ends by itself; /continue goes on


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The text before and after each turn, by role; an answer ends with one of `stops`. A template whose `system` is
    None puts the system prompt before the first question, as its model was trained."""

    meaning: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str] | None
    stops: tuple[str, ...]

    def render(self, turns: Sequence[Message]) -> str:
        """Return the prompt: every turn, and the beginning of the answer, or the answer to continue without an end."""
        whole, begun = (turns[:-1], turns[-1].content) if turns[-1].role == "assistant" else (turns, "")
        if self.system is None and len(whole) > 1 and whole[0].role == "system":
            system, question, *others = whole
            whole = [Message(question.role, f"{system.content}\n\n{question.content}"), *others]
        marks = {"user": self.user, "assistant": self.assistant, "system": self.system or ("", "")}
        text = "".join(turn.content.join(marks[turn.role]) for turn in whole)
        return text + self.assistant[0] + begun


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
    if template != COMPLETION:
        return TEMPLATES[template].render(turns)
    text = ""
    for turn in turns:  # an answer goes on where its question ends, a later question begins a new line
        if turn.role != "assistant" and text and not text.endswith("\n"):
            text += "\n"
        text += turn.content
    return text


def template_stops(template: str) -> tuple[str, ...]:
    return () if template == COMPLETION else TEMPLATES[template].stops


MAX_OPTION_BYTES = MAX_GRAMMAR_BYTES
_MAX_TEXTS = 16
_MAX_BREAKER_BYTES = 40
_MAX_COUNT_DIGITS = 9
THINK_LEVELS = ("off", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class ChatOption(ABC):
    """One option under the engine's name."""

    name: str
    meaning: str

    @property
    @abstractmethod
    def expected(self) -> str:
        """Which values it takes, as a sentence for someone who gave another."""

    @abstractmethod
    def valid(self, value: object) -> Scalar | None:
        """Return a stored value in this option's kind; None if it is not valid."""

    def parse(self, text: str) -> Scalar | None:
        """Return the value of what a user wrote; None if it is not valid. Raises UsageError where it knows why."""
        return self.valid(text)

    def sent(self, value: Any) -> Any:
        """Return a valid value as requests have it."""
        return value


@dataclass(frozen=True, slots=True)
class NumberOption(ChatOption):
    """A number; the bounds are inclusive."""

    kind: type[int] | type[float]
    lowest: float
    highest: float

    @property
    def expected(self) -> str:
        return f"Give a{' whole' if self.kind is int else ''} number from {self.lowest} to {self.highest}, or nothing."

    def parse(self, text: str) -> Scalar | None:
        try:
            return self.valid(self.kind(text))
        except ValueError:  # no number, or one of thousands of digits
            return None

    def valid(self, value: object) -> Scalar | None:
        if isinstance(value, bool) or not isinstance(value, (int, self.kind)):
            return None
        return self.kind(value) if self.lowest <= value <= self.highest else None


@dataclass(frozen=True, slots=True)
class TextsOption(ChatOption):
    """Some texts, such as stop strings: a JSON list of them, or one as it is."""

    most_bytes: int = 1024

    @property
    def expected(self) -> str:
        return f'Give one text, or up to {_MAX_TEXTS} as JSON: ["END", "\\n"].'

    def parse(self, text: str) -> Scalar | None:
        return self.valid(text if text.startswith("[") else [text])

    def valid(self, value: object) -> Scalar | None:
        texts = _json(value) if isinstance(value, str) else value
        if not isinstance(texts, list) or not 1 <= len(texts) <= _MAX_TEXTS:
            return None
        are_texts = all(isinstance(text, str) and 0 < _n_bytes(text) <= self.most_bytes for text in texts)
        return json.dumps(texts, ensure_ascii=False) if are_texts else None

    def sent(self, value: Any) -> Any:
        return tuple(json.loads(value))


@dataclass(frozen=True, slots=True)
class TextOption(ChatOption):
    """A text that the engine checks, such as a grammar."""

    @property
    def expected(self) -> str:
        return f"Give at most {MAX_OPTION_BYTES >> 10} KiB of text."

    def valid(self, value: object) -> Scalar | None:
        is_valid = isinstance(value, str) and 0 < _n_bytes(value) <= MAX_OPTION_BYTES
        return str(value) if is_valid else None


@dataclass(frozen=True, slots=True)
class SchemaOption(TextOption):
    """A JSON schema; which of its keywords are supported is known to the service."""

    @property
    def expected(self) -> str:
        return f"Give a JSON object of at most {MAX_OPTION_BYTES >> 10} KiB, or a file with one."

    def parse(self, text: str) -> Scalar | None:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.name} is not JSON: {error}.", self.expected) from error
        return self.valid(text)

    def valid(self, value: object) -> Scalar | None:
        text = TextOption.valid(self, value)
        return text if text is not None and isinstance(_json(text), dict) else None

    def sent(self, value: Any) -> Any:
        return json.loads(value)


@dataclass(frozen=True, slots=True)
class ChoiceOption(ChatOption):
    """One of some names; where it `takes_counts`, a number of tokens too."""

    choices: tuple[str, ...]
    takes_counts: bool = False

    @property
    def expected(self) -> str:
        count = ", a number of tokens" if self.takes_counts else ""
        return f"Give one of {', '.join(self.choices)}{count}, or nothing."

    def parse(self, text: str) -> Scalar | None:
        return self.valid(text.lower())

    def valid(self, value: object) -> Scalar | None:
        if not isinstance(value, str):
            return None
        is_count = value.isascii() and value.isdecimal() and len(value) <= _MAX_COUNT_DIGITS
        return value if value in self.choices or (self.takes_counts and is_count) else None


@dataclass(frozen=True, slots=True)
class SwitchOption(ChoiceOption):
    """On or off, which requests have as true or false."""

    def sent(self, value: Any) -> Any:
        return value == "on"


_OF_ANSWERS: tuple[ChatOption, ...] = (
    ChoiceOption("think", "thought: off, low, medium, high, or its tokens", THINK_LEVELS, takes_counts=True),
    NumberOption("max_tokens", "longest answer", int, 1, 2**31 - 1),
    TextsOption("stop", 'texts that end it: END, or ["END", "\\n"]'),
    SchemaOption("json_schema", "form of the answer: a schema, or its file"),
    SwitchOption("deterministic", "on: same question and seed, same answer to the letter; slower", ("on", "off")),
    ChoiceOption("template", "form of the prompt: completion, chatml …", (COMPLETION, *TEMPLATES)),
)
# In the order of forms and lists: those that people change first, then the rest by what it is about.
BASIC_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed", "stop")
_OF_FORM = ("think", "json_schema", "grammar", "template", "deterministic")
_AGAINST_REPETITION = (
    *("presence_penalty", "frequency_penalty", "penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "dry_sequence_breakers"),
)


def _samplers() -> Iterator[ChatOption]:
    for name, meaning in SAMPLER_DESCRIPTIONS.items():
        if name in NUMBER_TYPES:
            yield NumberOption(name, meaning, NUMBER_TYPES[name], *NUMBER_RANGES[name])
        elif name == "seed":
            yield NumberOption(name, meaning, int, 0, 2**32 - 1)
        elif name == "grammar":
            yield TextOption(name, meaning)
        else:
            yield TextsOption(name, meaning, _MAX_BREAKER_BYTES)


_DECLARED = {option.name: option for option in (*_samplers(), *_OF_ANSWERS)}
_GROUPED = (*BASIC_OPTIONS, *_OF_FORM, *_AGAINST_REPETITION)
# The options besides the basic ones, by a title; a new sampler is among the last.
MORE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "Thought and form of the answer": _OF_FORM,
    "Against repetition": _AGAINST_REPETITION,
    "Other samplers": tuple(name for name in _DECLARED if name not in _GROUPED),
}
OPTIONS_BY_NAME = {
    name: _DECLARED[name] for name in (*BASIC_OPTIONS, *(each for names in MORE_OPTIONS.values() for each in names))
}
CHAT_OPTIONS = tuple(OPTIONS_BY_NAME.values())
# What happens without an option that has no number of its own.
_UNSET = {
    "max_tokens": "until the model ends",
    "seed": "random",
    "stop": "none",
    "think": "as the model is used to",
    "deterministic": "as the settings say",
    "json_schema": "free text",
    "grammar": "free text",
    "template": "the model's own",
}
FILE_OPTIONS = frozenset(option.name for option in CHAT_OPTIONS if isinstance(option, TextOption))
_FIELDS = frozenset(item.name for item in fields(GenerationOptions))


def default_text(name: str, sampling: ModelSampling | None) -> str:
    """Return what the option `name` is where a chat does not set it, and whose value that is; `sampling` is None where
    the engine does not say it."""
    if name in _UNSET:
        return _UNSET[name]
    if name == "dry_sequence_breakers":
        return json.dumps(SamplingOptions().dry_sequence_breakers)
    default = sampling.options.get(name) if sampling is not None else None
    return "the engine's default" if default is None else default.words


def unusual_text(options: Mapping[str, object]) -> str:
    """Return which of the `options`, valid as they are, have numbers that nobody uses, in a line; "" for none."""
    texts = []
    for name, value in valid_options(options).items():
        usual = USUAL_RANGES.get(name)
        if usual is not None and isinstance(value, int | float) and not usual.least <= value <= usual.most:
            shown, least, most = map(format_number, (value, usual.least, usual.most))
            texts.append(f"{name} {shown} is unusual, {least} to {most} is common")
    return f"Note: {'; '.join(texts)}." if texts else ""


def parse_options(texts: Mapping[str, str]) -> dict[str, Scalar]:
    """Parse `texts` by option name; a blank text is the model's default. Raises UsageError for an invalid value."""
    parsed: dict[str, Scalar] = {}
    for option in CHAT_OPTIONS:
        if text := texts.get(option.name, "").strip():
            value = option.parse(text)
            if value is None:
                raise _refusal(option, text)
            parsed[option.name] = value
    return parsed


def split_changes(text: str) -> dict[str, str]:
    """Return the texts by option name in changes such as `temperature=0.2 stop=["END", "\\n"]`; JSON may have spaces.

    Raises UsageError for an unknown name.
    """
    texts = {}
    rest = text.strip()
    while rest:
        name, equals, after = rest.partition("=")
        if not equals or name not in OPTIONS_BY_NAME:
            word = rest.split()[0]
            raise UsageError(
                f"{word} is not an option.", f"Write NAME=VALUE, NAME one of {', '.join(OPTIONS_BY_NAME)}."
            )
        texts[name], rest = _first_value(after)
    return texts


def change_options(options: Mapping[str, Scalar], texts: Mapping[str, str]) -> dict[str, Scalar]:
    """Return `options` with the changed `texts`, of which a blank one resets to the model's default. Raises UsageError
    for an invalid change."""
    kept = {name: value for name, value in valid_options(options).items() if name not in texts}
    return kept | parse_options(texts)


def validate_options(options: Mapping[str, Scalar | None]) -> dict[str, Scalar]:
    """Return the `options` that are not None. Raises UsageError for an invalid value."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if OPTIONS_BY_NAME[name].valid(value) is None:
            raise _refusal(OPTIONS_BY_NAME[name], str(value))
    return given


def valid_options(options: Mapping[str, object]) -> dict[str, Scalar]:
    """Return the `options` that are known and valid."""
    valid = {option.name: option.valid(options[option.name]) for option in CHAT_OPTIONS if option.name in options}
    return {name: value for name, value in valid.items() if value is not None}


def generation_options(options: Mapping[str, object]) -> GenerationOptions:
    sent = {
        name: OPTIONS_BY_NAME[name].sent(value) for name, value in valid_options(options).items() if name != "template"
    }
    known = {name: value for name, value in sent.items() if name in _FIELDS}
    samplers = {HTTP_NAMES.get(name, name): value for name, value in sent.items() if name not in _FIELDS}
    return GenerationOptions(**known, samplers=samplers)


def schema_of(options: Mapping[str, object]) -> object:
    """Return the JSON schema among the options; None without one."""
    value = OPTIONS_BY_NAME["json_schema"].valid(options.get("json_schema"))
    return None if value is None else _json(value)


def template_of(options: Mapping[str, object]) -> str:
    """Return the name of the template among the options; "" for the model's own."""
    return str(OPTIONS_BY_NAME["template"].valid(options.get("template")) or "")


def think_of(options: Mapping[str, object]) -> str:
    """Return how much to think among the options; "" for the model's own way."""
    return str(OPTIONS_BY_NAME["think"].valid(options.get("think")) or "")


def _first_value(text: str) -> tuple[str, str]:
    """Return the value at the start of `text`, a word or JSON, and what follows it."""
    if text.startswith(('"', "[", "{")):
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return text, ""  # the refusal shows it
        if end == len(text) or text[end].isspace():
            return value if isinstance(value, str) else text[:end], text[end:].strip()
    word = "" if not text or text[0].isspace() else text.split(None, 1)[0]
    return word, text[len(word) :].strip()


def _json(value: object) -> Any:
    """Return the value of JSON text, None for anything else."""
    try:
        return json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _refusal(option: ChatOption, text: str) -> UsageError:
    shown = text if len(text) <= 80 else f"{text[:79]}…"
    return UsageError(f"{option.name} is {shown}.", option.expected)
