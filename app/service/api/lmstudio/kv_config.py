"""LM Studio's configuration, lists of keys and values in layers, as OpenAI's fields and options of loading. Pure.

Source: lmstudio-js 2.0.0, `globalConfigSchematics` in `lms-kv-config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import StrictStr
from typing_extensions import TypedDict

from app.engine.messages import BackendFacts, EngineConfig
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
        return {field.key: field.value for layer in self.layers for field in layer.config.fields}


class SdkField(TypedDict):
    """A key with its value."""

    key: str
    value: Any


class SdkConfig(TypedDict):
    """A configuration as clients read it."""

    fields: list[SdkField]


def sdk_config(fields: ConfigFields) -> SdkConfig:
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
