"""What clients of LM Studio's SDK send, in OpenAI's form: conversations, uploaded pictures, configuration. Pure.

Clients send back what they were sent, so reasoning lies in an assistant's text, tags included. Configuration, lists of
keys and values in layers, becomes OpenAI's fields and options of loading. Source: lmstudio-js 2.0.0,
`chatMessageDataSchema`, `LLMPromptTemplate`, and `globalConfigSchematics` in `lms-kv-config`.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pydantic import StrictInt, StrictStr

from app.engine.messages import BackendFacts, EngineConfig
from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.api.unread_fields import is_told

ConfigFields: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[EngineConfig], EngineConfig]
Message: TypeAlias = dict[str, Any]

MAX_CHARACTERS = 64 << 20  # of Base64
_PREDICTION = "llm.prediction."
_MOST_TOKENS = 1 << 30  # llama.cpp counts them in 32 bits
OPENING_TAG, CLOSING_TAG = "<think>", "</think>"  # of every model's reasoning in the fragments of an answer


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
                ids = {"tool_call_id": part.toolCallId, "name": part.name or None}
                yield {"role": "tool", "content": part.content, **ids}
            return
        parts = [part for part in self.content if part.type != "toolCallRequest"]
        text = "".join(part.text for part in parts)
        is_text = self.role == "assistant" or all(part.type == "text" for part in parts)
        content = text if is_text else [part.content_part(files) for part in parts]
        message: Message = {"role": self.role, "content": content}
        if self.role == "assistant":
            if text.startswith(OPENING_TAG) and CLOSING_TAG in text:  # reasoning comes first
                reasoning, _, answer = text.removeprefix(OPENING_TAG).partition(CLOSING_TAG)
                message |= {"content": answer.lstrip("\n"), "reasoning_content": reasoning.strip("\n")}
            if calls := [part.toolCallRequest.message() for part in self.content if part.type == "toolCallRequest"]:
                message["tool_calls"] = calls
        yield message


class ChatHistory(Body):
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


class _Field(Body):
    key: StrictStr
    value: Any = None


class _Config(Body):
    fields: tuple[_Field, ...] = ()


class _Layer(Body):
    config: _Config = _Config()


class ConfigStack(Body):
    """Layers of configuration, of which later ones count more (source: `collapseKVStack`)."""

    layers: tuple[_Layer, ...] = ()

    def fields_of(self) -> dict[str, Any]:
        return {field.key: field.value for layer in self.layers for field in layer.config.fields}


def sdk_config(fields: ConfigFields) -> dict[str, list[dict[str, Any]]]:
    return {"fields": [{"key": key, "value": value} for key, value in fields.items()]}


@dataclass(frozen=True, slots=True)
class _Checkbox:
    """A number that can be switched off, which is `off` in our field `name`."""

    name: str
    off: float | None = None

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError("it is not a checkbox")
        wanted = value.get("value") if value.get("checked") else self.off
        return {} if wanted is None else {self.name: wanted}


def _max_tokens(value: Any) -> dict[str, Any]:
    limit = value.get("value") if value.get("checked") else None
    return {} if limit in (None, -1) else {"max_tokens": int(limit)}


def _structured(value: Any) -> dict[str, Any]:  # source: `LLMStructuredPredictionSetting`
    kind = value.get("type", "none")
    if kind == "gbnf":
        return {"grammar": value["gbnfGrammar"]}
    if kind == "none":
        return {}
    if kind != "json":
        raise ValueError(f"the type {str(kind)[:40]!r} is unknown")
    schema = value.get("jsonSchema")
    form = {"type": "json_object"} if schema is None else {"type": "json_schema", "json_schema": {"schema": schema}}
    return {"response_format": form}


def _tools(value: Any) -> dict[str, Any]:
    tools = value.get("tools") if value.get("type") == "toolArray" else None
    return {"tools": tools} if tools else {}


def _mirostat(value: Any) -> dict[str, Any]:
    rates = {"mirostat_eta": value["learningRate"], "mirostat_tau": value["targetEntropy"]}
    return {"mirostat": value["version"], **rates} if value["version"] else {}


_CONVERSIONS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "temperature": lambda value: {"temperature": value},
    "stopStrings": lambda value: {"stop": value},
    "topKSampling": lambda value: {"top_k": int(value)},  # JavaScript has no whole numbers
    "topPSampling": _Checkbox("top_p", 1.0),
    "minPSampling": _Checkbox("min_p", 0.0),
    "repeatPenalty": _Checkbox("repeat_penalty", 1.0),
    "maxPredictedTokens": _max_tokens,
    "seed": _Checkbox("seed"),
    "deterministic": lambda value: {"deterministic": bool(value)},  # no SDK has it; its own fields can be sent raw
    "structured": _structured,
    "tools": _tools,
    "toolChoice": lambda value: {"tool_choice": value["mode"]},
    "logProbs": lambda value: {"logprobs": True, "top_logprobs": int(value["value"])} if value.get("checked") else {},
    "contextOverflowPolicy": lambda value: {"context_shift": value != "stopAtLimit"},
    "reasoning.parsing": lambda value: {} if value.get("enabled", True) else {"reasoning_format": "none"},
    "reasoning.enableThinking": lambda value: {"enable_thinking": bool(value)},
    "reasoning.budgetTokens": lambda value: (
        {"reasoning_budget_tokens": int(value["value"])} if value.get("checked") else {}
    ),
    "llama.presencePenalty": _Checkbox("presence_penalty", 0.0),
    "llama.frequencyPenalty": _Checkbox("frequency_penalty", 0.0),
    "llama.xtcProbability": _Checkbox("xtc_probability", 0.0),
    "llama.xtcThreshold": _Checkbox("xtc_threshold"),
    "llama.locallyTypicalSampling": _Checkbox("typical_p", 1.0),
    "llama.mirostatSampling": _mirostat,
    "llama.logitBias": lambda value: {
        "logit_bias": [(int(token), False if bias == "-inf" else bias) for token, bias in value]
    },
}
_READ_ELSEWHERE = ("promptTemplate", "systemPrompt")  # with the history


def prediction_fields(fields: ConfigFields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return OpenAI's and our fields for a prediction, and ignored keys. Raises RequestError for an invalid value,
    and for a key that would change the answer and is not supported."""
    converted: dict[str, Any] = {}
    ignored = []
    for key, value in fields.items():
        name = key.removeprefix(_PREDICTION)
        if name != key and name in _CONVERSIONS:
            converted |= {} if value is None else _converted(key, _CONVERSIONS[name], value)
        elif (name == key or name not in _READ_ELSEWHERE) and is_told(key, value):
            ignored.append(key)
    return converted, tuple(ignored)


def _converted(key: str, convert: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    try:
        return convert(value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RequestError(f"{key} is {str(value)[:80]!r}: {error}.", "Correct that value.") from None


def change_of_loading(fields: ConfigFields) -> tuple[Change | None, tuple[str, ...]]:
    """Return how `fields` change the options of loading, if at all, and ignored keys. Raises as `prediction_fields`."""
    changes: dict[str, Any] = {}
    ignored = []
    for key, value in fields.items():
        name = key.removeprefix("llm.load.").removeprefix("embedding.load.").removeprefix("llama.")
        if name in _LOADING:
            changes |= _converted(key, _LOADING[name], value)
        elif is_told(key, value):
            ignored.append(key)
    types = [changes.pop(name, "") for name in ("key_type", "value_type")]
    if any(types):
        changes["kv_type"] = ",".join(kind or "f16" for kind in types)
    return ((lambda config: replace(config, **changes)) if changes else None), tuple(ignored)


def _n_tokens(value: Any) -> int:
    n_tokens = int(value)
    if not 1 <= n_tokens <= _MOST_TOKENS:
        raise ValueError("it is not a number of tokens")
    return n_tokens


def _cache_type(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: str(value["value"])} if value.get("checked") else {}


_LOADING: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "contextLength": lambda value: {"n_ctx": _n_tokens(value)},
    "evalBatchSize": lambda value: {"n_batch": _n_tokens(value)},
    "acceleration.offloadRatio": lambda value: {"uses_gpu": value not in ("off", 0)},  # how many layers: the planner
    "kCacheQuantizationType": _cache_type("key_type"),
    "vCacheQuantizationType": _cache_type("value_type"),
}


def load_fields(domain: str, config: EngineConfig, facts: BackendFacts) -> dict[str, Any]:
    llama: dict[str, Any] = {"evalBatchSize": facts.n_batch}
    if not config.uses_gpu:
        llama["acceleration.offloadRatio"] = "off"
    if domain == "llm" and config.kv_type:
        key_type, _, value_type = config.kv_type.partition(",")
        llama["kCacheQuantizationType"] = {"checked": True, "value": key_type}
        llama["vCacheQuantizationType"] = {"checked": True, "value": value_type or key_type}
    nested = {f"{domain}.load.llama.{name}": value for name, value in llama.items()}
    return {f"{domain}.load.contextLength": facts.n_ctx, **nested}
