"""LM Studio's configuration, lists of keys and values in layers, as OpenAI's fields and options of loading. Pure.

Owns the keys and the forms of their values. Source: lmstudio-js 2.0.0, `globalConfigSchematics` in `lms-kv-config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import StrictStr
from typing_extensions import TypedDict

from app.engine.protocol.messages import BackendFacts, EngineConfig
from app.protocol.errors import RequestError
from app.service.api.fields import Body

ConfigFields: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[EngineConfig], EngineConfig]

_PREDICTION = "llm.prediction."
_MOST_TOKENS = 1 << 30  # llama.cpp counts them in 32 bits


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
        """Return the value of each key."""
        return {field.key: field.value for layer in self.layers for field in layer.config.fields}


class SdkField(TypedDict):
    """A key with its value."""

    key: str
    value: Any


class SdkConfig(TypedDict):
    """A configuration as clients read it."""

    fields: list[SdkField]


def sdk_config(fields: ConfigFields) -> SdkConfig:
    """Return `fields` as clients read them."""
    return {"fields": [{"key": key, "value": value} for key, value in fields.items()]}


@dataclass(frozen=True, slots=True)
class _Checkbox:
    """A number that can be switched off, which is `off` in our field `name`."""

    name: str
    off: float | None = None

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError("it is no checkbox")
        wanted = value.get("value") if value.get("checked") else self.off
        return {} if wanted is None else {self.name: wanted}


def _as(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value}


def _top_k(value: Any) -> dict[str, Any]:
    return {"top_k": int(value)}  # JavaScript has no whole numbers


def _max_tokens(value: Any) -> dict[str, Any]:
    limit = value.get("value") if value.get("checked") else None
    return {} if limit in (None, -1) else {"max_tokens": int(limit)}


def _structured(value: Any) -> dict[str, Any]:
    """Return the form of the answer (source: `LLMStructuredPredictionSetting`)."""
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


def _tool_choice(value: Any) -> dict[str, Any]:
    return {"tool_choice": value["mode"]}


def _logprobs(value: Any) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": int(value["value"])} if value.get("checked") else {}


def _mirostat(value: Any) -> dict[str, Any]:
    rates = {"mirostat_eta": value["learningRate"], "mirostat_tau": value["targetEntropy"]}
    return {"mirostat": value["version"], **rates} if value["version"] else {}


def _biases(value: Any) -> dict[str, Any]:
    return {"logit_bias": [(int(token), False if bias == "-inf" else bias) for token, bias in value]}


def _overflow(value: Any) -> dict[str, Any]:
    return {"context_shift": value != "stopAtLimit"}


def _reasoning_parsing(value: Any) -> dict[str, Any]:
    return {} if value.get("enabled", True) else {"reasoning_format": "none"}


def _thinking(value: Any) -> dict[str, Any]:
    return {"enable_thinking": bool(value)}


def _thinking_budget(value: Any) -> dict[str, Any]:
    return {"reasoning_budget_tokens": int(value["value"])} if value.get("checked") else {}


_CONVERSIONS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "temperature": _as("temperature"),
    "stopStrings": _as("stop"),
    "topKSampling": _top_k,
    "topPSampling": _Checkbox("top_p", 1.0),
    "minPSampling": _Checkbox("min_p", 0.0),
    "repeatPenalty": _Checkbox("repeat_penalty", 1.0),
    "maxPredictedTokens": _max_tokens,
    "seed": _Checkbox("seed"),
    "structured": _structured,
    "tools": _tools,
    "toolChoice": _tool_choice,
    "logProbs": _logprobs,
    "contextOverflowPolicy": _overflow,
    "reasoning.parsing": _reasoning_parsing,
    "reasoning.enableThinking": _thinking,
    "reasoning.budgetTokens": _thinking_budget,
    "llama.presencePenalty": _Checkbox("presence_penalty", 0.0),
    "llama.frequencyPenalty": _Checkbox("frequency_penalty", 0.0),
    "llama.xtcProbability": _Checkbox("xtc_probability", 0.0),
    "llama.xtcThreshold": _Checkbox("xtc_threshold"),
    "llama.locallyTypicalSampling": _Checkbox("typical_p", 1.0),
    "llama.mirostatSampling": _mirostat,
    "llama.logitBias": _biases,
}
# Ours is done by who reads the answer, or changes nothing of it.
_HARMLESS = frozenset(
    {
        "promptTemplate",  # read by `history`
        "systemPrompt",  # likewise
        "toolNaming",  # of plugins
        "contextPrefill",
        "vision.userMaxImageDimensionPixels",
        "vision.ignoreModelPreferredMaxImageDimension",
    }
)


def prediction_fields(fields: ConfigFields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return OpenAI's fields (and ours) for a prediction, and the keys that are ignored.

    Raises RequestError for a value of another form.
    """
    converted: dict[str, Any] = {}
    ignored = []
    for key, value in fields.items():
        name = key.removeprefix(_PREDICTION)
        if name == key or (name not in _CONVERSIONS and name not in _HARMLESS):
            ignored.append(key)
        elif name in _CONVERSIONS and value is not None:
            converted |= _converted(key, _CONVERSIONS[name], value)
    return converted, tuple(ignored)


def _converted(key: str, convert: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    try:
        return convert(value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RequestError(f"{key} is {str(value)[:80]!r}: {error}.", "Correct that value.") from None


def change_of_loading(fields: ConfigFields) -> tuple[Change | None, tuple[str, ...]]:
    """Return how `fields` change the options of loading, None for not at all, and the keys that are ignored.

    Raises RequestError for a value of another form.
    """
    changes: dict[str, Any] = {}
    ignored = []
    for key, value in fields.items():
        name = key.removeprefix("llm.load.").removeprefix("embedding.load.").removeprefix("llama.")
        if name in _LOADING:
            changes |= _converted(key, _LOADING[name], value)
        elif (key, value) != _USUAL_SPLIT and name not in _OF_OTHER_ENGINES:
            ignored.append(key)
    types = [changes.pop(name, "") for name in ("key_type", "value_type")]
    if any(types):
        changes["kv_type"] = ",".join(kind or "f16" for kind in types)
    return ((lambda config: replace(config, **changes)) if changes else None), tuple(ignored)


# What the JavaScript SDK 2.0.0 sends with every loading: whether LM Studio's engines choose what fits, as ours does.
_OF_OTHER_ENGINES = frozenset({"autoFit", "mlx.autoFit", "yuzu.autoFit"})
# What the JavaScript SDK 1.5.0 sends with every loading.
_USUAL_SPLIT = (
    "load.gpuSplitConfig",
    {"strategy": "evenly", "disabledGpus": [], "priority": [], "customRatio": []},
)


def _context(value: Any) -> dict[str, Any]:
    n_ctx = int(value)
    if not 1 <= n_ctx <= _MOST_TOKENS:
        raise ValueError("it is no number of tokens")
    return {"n_ctx": n_ctx}


def _batch(value: Any) -> dict[str, Any]:
    n_batch = int(value)
    if not 1 <= n_batch <= _MOST_TOKENS:
        raise ValueError("it is no number of tokens")
    return {"n_batch": n_batch}


def _offload(value: Any) -> dict[str, Any]:
    """Return whether a GPU is used; how many layers go there is planned."""
    return {"uses_gpu": value not in ("off", 0)}


def _cache_type(name: str) -> Callable[[Any], dict[str, Any]]:
    def convert(value: Any) -> dict[str, Any]:
        return {name: str(value["value"])} if value.get("checked") else {}

    return convert


_LOADING: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "contextLength": _context,
    "evalBatchSize": _batch,
    "acceleration.offloadRatio": _offload,
    "kCacheQuantizationType": _cache_type("key_type"),
    "vCacheQuantizationType": _cache_type("value_type"),
}


def load_fields(domain: str, config: EngineConfig, facts: BackendFacts) -> dict[str, Any]:
    """Return the keys of a loaded model."""
    llama: dict[str, Any] = {"evalBatchSize": facts.n_batch}
    if not config.uses_gpu:
        llama["acceleration.offloadRatio"] = "off"
    if domain == "llm" and config.kv_type:
        key_type, _, value_type = config.kv_type.partition(",")
        llama["kCacheQuantizationType"] = {"checked": True, "value": key_type}
        llama["vCacheQuantizationType"] = {"checked": True, "value": value_type or key_type}
    nested = {f"{domain}.load.llama.{name}": value for name, value in llama.items()}
    return {f"{domain}.load.contextLength": facts.n_ctx, **nested}
