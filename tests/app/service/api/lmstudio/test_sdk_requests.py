from __future__ import annotations

from typing import Any

import pytest

from app.engine.messages import EngineConfig
from app.protocol.errors import RequestError
from app.service.api.lmstudio.sdk_requests import ConfigStack, change_of_loading, prediction_fields
from app.service.api.openai.requests import ChatCompletionBody


def _body(**fields: Any) -> ChatCompletionBody:
    """Return the chat body of a prediction's fields, `__` standing for a dot in their names."""
    keys = {f"llm.prediction.{name.replace('__', '.')}": value for name, value in fields.items()}
    converted, ignored = prediction_fields(keys)
    assert ignored == ()
    return ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "hi"}], **converted})


def test_every_sampling_option_of_the_sdks_reaches_the_engine() -> None:
    """What `LLMPredictionConfig` of the JavaScript SDK 2.0.0 becomes in `llmPredictionConfigToKVConfig`."""
    checked = lambda value: {"checked": True, "value": value}  # noqa: E731
    request = _body(
        temperature=0.5,
        topKSampling=7.0,
        topPSampling=checked(0.8),
        minPSampling=checked(0.2),
        repeatPenalty=checked(1.3),
        maxPredictedTokens=checked(9),
        seed=checked(4),
        stopStrings=["a", "b"],
        llama__presencePenalty=checked(0.3),
        llama__frequencyPenalty=checked(0.4),
        llama__xtcProbability=checked(0.1),
        llama__xtcThreshold=checked(0.2),
        llama__mirostatSampling={"version": 2, "learningRate": 0.2, "targetEntropy": 4},
        llama__logitBias=[[3, 1.5], [4, "-inf"]],
        contextOverflowPolicy="rollingWindow",
        logProbs=checked(2),
    ).request()
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.8, 0.2)
    assert (sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.3, 0.3, 0.4)
    assert (sampling.xtc_probability, sampling.xtc_threshold, sampling.seed) == (0.1, 0.2, 4)
    assert (sampling.mirostat, sampling.mirostat_eta, sampling.mirostat_tau) == (2, 0.2, 4)
    assert sampling.logit_bias == ((3, 1.5), (4, float("-inf")))
    assert (request.max_tokens, request.stop, request.n_logprobs) == (9, ("a", "b"), 2)
    assert request.context_shift is True


def test_an_option_that_is_switched_off_does_nothing() -> None:
    off = {"checked": False, "value": 0.4}
    options = dict.fromkeys(("topPSampling", "minPSampling", "repeatPenalty", "maxPredictedTokens", "seed"), off)
    request = _body(**options, logProbs=off).request()
    assert (request.sampling.top_p, request.sampling.min_p, request.sampling.repeat_penalty) == (1.0, 0.0, 1.0)
    assert (request.max_tokens, request.sampling.seed, request.n_logprobs) == (None, None, None)


def test_a_schema_a_grammar_and_tools_reach_the_engine() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert _body(structured={"type": "json", "jsonSchema": schema}).turn().answer_format is not None
    assert _body(structured={"type": "json"}).turn().answer_format is not None
    assert (
        _body(structured={"type": "gbnf", "gbnfGrammar": 'root ::= "x"'}).request().sampling.grammar == 'root ::= "x"'
    )
    assert _body(structured={"type": "none"}).request().sampling.grammar == ""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    choice = {"type": "generic", "mode": "required"}
    turn = _body(tools={"type": "toolArray", "tools": [tool]}, toolChoice=choice).turn()
    assert [tool.name for tool in turn.tools.tools] == ["get_weather"]
    assert turn.tools.must_call
    assert _body(tools={"type": "none"}).turn().tools.tools == ()


def test_thinking_is_switched_off_and_left_in_the_text() -> None:
    assert (
        not _body(reasoning__parsing={"enabled": False, "startString": "", "endString": ""}).turn().separates_reasoning
    )
    assert _body(reasoning__enableThinking=False).turn().thinking.is_wanted is False
    assert _body(reasoning__budgetTokens={"checked": True, "value": 512}).turn().thinking.n_tokens == 512


def test_later_layers_count_more() -> None:
    layers = [{"layerName": name, "config": {"fields": [{"key": "a", "value": name}]}} for name in ("one", "two")]
    assert ConfigStack.model_validate({"layers": layers}).fields_of() == {"a": "two"}


def test_keys_that_mean_nothing_here_are_named() -> None:
    _, ignored = prediction_fields({"llm.prediction.toolNaming": "camelCase", "llm.prediction.llama.cpuThreads": 3})
    assert ignored == ("llm.prediction.llama.cpuThreads",)
    _, ignored = change_of_loading({"llm.load.llama.tryMmap": True, "load.gpuStrictVramCap": True})
    assert ignored == ("llm.load.llama.tryMmap", "load.gpuStrictVramCap")


def test_what_the_sdks_send_with_every_loading_is_not_told() -> None:
    split = {"strategy": "evenly", "disabledGpus": [], "priority": [], "customRatio": []}
    always = {f"llm.load.{engine}.autoFit": True for engine in ("llama", "mlx", "yuzu")}
    assert change_of_loading({"load.gpuSplitConfig": split, **always}) == (None, ())
    assert change_of_loading({"load.gpuSplitConfig": {**split, "strategy": "custom"}})[1] == ("load.gpuSplitConfig",)


def test_options_of_loading_become_the_engines() -> None:
    change, ignored = change_of_loading(
        {
            "llm.load.contextLength": 512,
            "llm.load.llama.evalBatchSize": 64.0,
            "llm.load.llama.acceleration.offloadRatio": "off",
            "llm.load.llama.kCacheQuantizationType": {"checked": True, "value": "q8_0"},
            "llm.load.llama.vCacheQuantizationType": {"checked": False, "value": "q4_0"},
        }
    )
    assert change is not None
    assert change(EngineConfig()) == EngineConfig(n_ctx=512, n_batch=64, uses_gpu=False, kv_type="q8_0,f16")
    assert ignored == ()
    assert change_of_loading({}) == (None, ())


@pytest.mark.parametrize("n_ctx", [0, -1, 1 << 40, "x", None, [], 1e400])
def test_a_context_of_another_size_or_kind_is_refused(n_ctx: object) -> None:
    with pytest.raises(RequestError, match="contextLength"):
        change_of_loading({"llm.load.contextLength": n_ctx})


@pytest.mark.parametrize("key", ["llm.prediction.toolCallStopStrings", "llm.prediction.contextPrefill"])
def test_a_setting_that_would_change_the_answer_is_refused(key: str) -> None:
    assert prediction_fields({key: []}) == ({}, ())
    with pytest.raises(RequestError, match=key):
        prediction_fields({key: ["x"]})


def test_a_setting_of_loading_that_would_change_answers_is_refused() -> None:
    key = "llm.load.llama.ropeFrequencyBase"
    assert change_of_loading({key: {"checked": False, "value": 5}}) == (None, ())
    with pytest.raises(RequestError, match=key):
        change_of_loading({key: {"checked": True, "value": 5}})
