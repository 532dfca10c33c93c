"""The frames that LM Studio's SDKs send, recorded from `lmstudio` 1.5.0 (Python) and `@lmstudio/sdk` 1.5.0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from websockets.sync.client import connect

from app.service.api.lmstudio.sdk_models import MODEL_ENDPOINTS
from app.service.api.lmstudio.sdk_session import Channel, Context
from app.service.http.access_log import RequestRecord
from app.service.models.manager import ModelManager
from app.service.server import CLIENTS_PORTS
from tests.app.engine.media.files import picture_file
from tests.app.running import RunningService
from tests.app.service.api.lmstudio.sdk_client import SdkClient, connected, history, of_model, predict, stack
from tests.app.service.api.picture_requests import FILE
from tests.app.service.models.managed import library_settings, managing, states
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": SCHEMA}}
CALL = '<say><tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call></say>'
# Of the Python SDK 1.5.0's `complete`.
COMPLETE_LAYER = {
    "layerName": "completeModeFormatting",
    "config": {
        "fields": [
            {
                "key": "llm.prediction.promptTemplate",
                "value": {
                    "jinjaPromptTemplate": {
                        "bosToken": "",
                        "eosToken": "",
                        "inputConfig": {"messagesConfig": {"contentConfig": {"type": "string"}}, "useTools": False},
                        "template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
                    },
                    "stopStrings": [],
                    "type": "jinja",
                },
            }
        ]
    },
}
USUAL_SPLIT = {"strategy": "evenly", "disabledGpus": [], "priority": [], "customRatio": []}


@pytest.fixture
def llm(service: RunningService) -> Iterator[SdkClient]:
    with connected(service.url, "llm") as client:
        yield client


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService]) -> RunningService:
    return start_service()


def _text(packets: list[dict[str, Any]]) -> str:
    return "".join(packet["fragment"]["content"] for packet in packets if packet["type"] == "fragment")


def test_a_service_greets_the_sdk(service: RunningService) -> None:
    assert service.http.get("/lmstudio-greeting").json() == {"lmstudio": True}


def test_respond_streams_fragments_and_ends_with_statistics(llm: SdkClient) -> None:
    *fragments, success = llm.packets("predict", predict("<say>It snows.</say>", temperature=0.0))
    assert _text(fragments) == "It snows."
    assert {fragment["fragment"]["reasoningType"] for fragment in fragments} == {"none"}
    n_tokens = sum(fragment["fragment"]["tokensCount"] for fragment in fragments)
    stats = success["stats"]
    assert (success["type"], stats["stopReason"]) == ("success", "eosFound")
    assert n_tokens <= stats["predictedTokensCount"]
    assert stats["totalTokensCount"] == stats["promptTokensCount"] + stats["predictedTokensCount"]
    assert success["modelInfo"]["identifier"] == "tiny"
    assert {"key": "llm.load.contextLength", "value": 4096} in success["loadModelConfig"]["fields"]
    assert success["predictionConfig"]["fields"] == [{"key": "llm.prediction.temperature", "value": 0.0}]
    assert llm.warnings == []


def test_a_limit_and_a_stop_string_are_named_as_the_reason(llm: SdkClient) -> None:
    limit = {"checked": True, "value": 3}
    *_, limited = llm.packets("predict", predict("<say>one two three four</say>", maxPredictedTokens=limit))
    assert limited["stats"]["stopReason"] == "maxPredictedTokensReached"
    *packets, stopped = llm.packets("predict", predict("<say>one two three</say>", stopStrings=[" three"]))
    assert _text(packets) == "one two"
    assert (stopped["stats"]["stopReason"], stopped["stats"]["stopString"]) == ("stopStringFound", " three")


def test_complete_continues_the_text_without_the_models_template(llm: SdkClient) -> None:
    body = predict("<say>x y</say>", maxPredictedTokens={"checked": True, "value": 5}, stopStrings=[])
    body["predictionConfigStack"]["layers"].append(COMPLETE_LAYER)
    *packets, success = llm.packets("predict", body)
    whole = llm.packets("predict", predict("<say>x y</say>"))[-1]
    assert _text(packets) == "x y"
    assert success["stats"]["promptTokensCount"] < whole["stats"]["promptTokensCount"]


def test_complete_of_the_sdk_2_sends_the_raw_text(llm: SdkClient) -> None:
    raw = {"modelSpecifier": of_model("tiny"), "rawPrompt": "<say>x y</say>", "predictionConfigStack": stack()}
    assert _text(llm.packets("completeRawText", raw)) == "x y"


def test_a_manual_template_of_the_client_is_followed(llm: SdkClient) -> None:
    template = {
        "type": "manual",
        "manualPromptTemplate": {"beforeUser": "U:", "afterUser": "\n", "beforeAssistant": "A:"},
    }
    body = {
        "specifier": of_model("tiny"),
        "history": history(("system", "S"), ("user", "hi")),
        "predictionConfigStack": stack(llm__prediction__promptTemplate=template),
        "opts": {},
    }
    assert llm.result("applyPromptTemplate", body) == {"formatted": "SU:hi\nA:"}


def test_a_call_of_a_tool_is_sent_in_parts_and_taken_back_in_the_next_round(llm: SdkClient) -> None:
    tools = {"type": "toolArray", "tools": [TOOL]}
    packets = llm.packets("predict", predict(CALL, tools=tools))
    kinds = [packet["type"] for packet in packets]
    assert kinds[:2] == ["toolCallGenerationStart", "toolCallGenerationNameReceived"]
    arguments = "".join(packet.get("content", "") for packet in packets)
    assert json.loads(arguments) == {"city": "Oslo"}
    request = packets[kinds.index("toolCallGenerationEnd")]["toolCallRequest"]
    assert (request["type"], request["name"], request["arguments"]) == ("function", "get_weather", {"city": "Oslo"})
    assert packets[0]["toolCallId"] == request["id"]
    assert packets[-1]["stats"]["stopReason"] == "toolCalls"

    body = predict("", tools=tools)
    body["history"] = history(
        ("user", CALL),
        ("assistant", [{"type": "text", "text": ""}, {"type": "toolCallRequest", "toolCallRequest": request}]),
        ("tool", [{"type": "toolCallResult", "content": '"<say>It is cold.</say>"', "toolCallId": request["id"]}]),
    )
    assert _text(llm.packets("predict", body)) == "It is cold."


def test_an_answer_has_the_form_of_a_schema_or_a_grammar(llm: SdkClient) -> None:
    structured = {"type": "json", "jsonSchema": {**SCHEMA, "$schema": "http://json-schema.org/draft-07/schema#"}}
    *packets, _ = llm.packets("predict", predict('<say>{"city": "Oslo"}</say>', structured=structured))
    assert json.loads(_text(packets)) == {"city": "Oslo"}
    bad = predict("hi", structured={"type": "json", "jsonSchema": {"type": "nonsense"}})
    assert "nonsense" in llm.error("predict", bad)["title"]
    grammar = {"type": "gbnf", "gbnfGrammar": 'root ::= "yes"'}
    *packets, success = llm.packets("predict", predict("<say>yes</say>", structured=grammar))
    assert _text(packets) == "yes"
    assert success["predictionConfig"]["fields"][0]["value"] == grammar


def test_probabilities_are_sent_where_they_are_asked_for(llm: SdkClient) -> None:
    *packets, _ = llm.packets("predict", predict("<say>ab</say>", logProbs={"checked": True, "value": 2}))
    tokens = [token for packet in packets for token in packet["fragment"].get("tokens", ())]
    assert "".join(token["text"] for token in tokens) == "ab"
    assert {len(token["candidates"]) for token in tokens} == {2}


def test_cancelling_ends_the_answer_with_what_was_said(service: RunningService, llm: SdkClient) -> None:
    channel = llm.open("predict", predict(f"<say>{'word ' * 300}</say>"))
    packets = llm.rest_of(channel)
    assert next(packets)["type"] == "fragment"
    llm.send({"type": "channelSend", "channelId": channel, "message": {"type": "cancel"}})
    *_, success = packets
    assert success["stats"]["stopReason"] == "userStopped"
    service.wait_until(lambda model: model["n_running"] == 0)


def test_a_client_that_goes_away_cancels_its_answer(service: RunningService) -> None:
    with connected(service.url, "llm") as client:
        client.open("predict", predict(f"<say>{'word ' * 300}</say>"))
        assert client.receive()["type"] == "channelSend"
    service.wait_until(lambda model: model["n_running"] == 0)


def test_calls_run_beside_an_open_channel(llm: SdkClient) -> None:
    channel = llm.open("predict", predict(f"<say>{'word ' * 200}</say>"))
    llm.send(
        {
            "type": "rpcCall",
            "endpoint": "countTokens",
            "callId": 99,
            "parameter": {"specifier": of_model("tiny"), "inputString": "a"},
        }
    )
    kinds = []
    while (frame := llm.receive())["type"] != "channelClose":
        kinds.append(frame["type"])
        assert frame.get("channelId", channel) == channel
    assert "rpcResult" in kinds


def test_models_are_described_as_the_sdks_parse_them(service: RunningService, llm: SdkClient) -> None:
    info = llm.result("getModelInfo", {"specifier": of_model("tiny"), "throwIfNotFound": True})
    required = {"type", "modelKey", "format", "displayName", "publisher", "path", "sizeBytes", "indexedModelIdentifier"}
    assert required | {"deviceIdentifier", "identifier", "instanceReference", "ttlMs", "lastUsedTime"} <= set(info)
    assert (info["maxContextLength"], info["contextLength"]) == (128, 4096)
    assert (info["vision"], info["type"], info["format"]) == (False, "llm", "gguf")
    assert isinstance(info["quantization"]["bits"], int)
    (loaded,) = llm.result("listLoaded")
    assert loaded | {name: info[name] for name in ("lastUsedTime", "ttlMs")} == info
    by_reference = {"type": "instanceReference", "instanceReference": info["instanceReference"]}
    assert llm.result("getLoadConfig", {"specifier": by_reference})["fields"][0]["value"] == 4096
    with connected(service.url, "system") as system:
        (downloaded,) = [model for model in system.result("listDownloadedModels") if model["modelKey"] == "tiny"]
        assert downloaded.items() <= info.items()
        assert set(system.result("version")) == {"version", "build"}


def test_any_model_is_meant_where_none_is_named(llm: SdkClient) -> None:
    """The JavaScript SDK 1.5.0 asks so for `client.llm.model()`."""
    body = {"specifier": {"type": "query", "query": {}}, "throwIfNotFound": True}
    assert llm.result("getModelInfo", body)["identifier"] == "tiny"


def test_tokens_and_vectors_are_those_of_the_other_dialects(service: RunningService, llm: SdkClient) -> None:
    body = {"specifier": of_model("tiny"), "inputString": "hello"}
    tokens = service.http.post("/tokenize", json={"content": "hello"}).json()["tokens"]
    assert llm.result("tokenize", body) == {"tokens": tokens}
    assert llm.result("countTokens", body) == {"tokenCount": len(tokens)}
    with connected(service.url, "embedding") as client:
        vector = client.result("embedString", {"modelSpecifier": of_model("tiny"), "inputString": "hello"})["embedding"]
        assert len(vector) == 8
        assert client.result("listLoaded") == []
    formatted = {
        "specifier": of_model("tiny"),
        "history": history(("user", "hi")),
        "predictionConfigStack": {"layers": []},
        "opts": {},
    }
    assert llm.result("applyPromptTemplate", formatted) == {"formatted": "<user>hi\n<assistant>"}


def test_a_missing_model_is_the_error_that_the_sdks_know(llm: SdkClient) -> None:
    """The Python SDK 1.5.0 raises LMStudioModelNotFoundError for the first, and JavaScript's lists what there is."""
    error = llm.error("predict", predict("hi", model="No such model"))
    assert error["displayData"]["code"] == "generic.noModelMatchingQuery"
    assert error["displayData"]["loadedModelsSample"] == ["tiny"]
    unload = llm.call("unloadModel", {"identifier": "No such model"})
    assert unload["error"]["displayData"]["code"] == "generic.noModelMatchingQuery"
    error = llm.error("getOrLoad", {"identifier": "nope", "loadTtlMs": 3600000, "loadConfigStack": stack()})
    assert (error["displayData"]["code"], error["displayData"]["path"]) == ("generic.pathNotFound", "nope")
    assert "tiny" in error["displayData"]["availablePathsSample"]
    assert error["errorData"] == {"code": "model_not_found"}


def test_a_prompt_that_does_not_fit_is_an_error_of_its_channel_alone(llm: SdkClient) -> None:
    error = llm.error("predict", predict("word " * 9000))
    assert error["errorData"] == {"code": "context_length_exceeded"}
    assert _text(llm.packets("predict", predict("<say>on</say>"))) == "on"


def test_loading_takes_the_clients_options_until_the_model_is_unloaded(own: RunningService) -> None:
    """The frames of `client.llm.load("tiny", {identifier: "mine", config: {…}})` of the JavaScript SDK 1.5.0."""
    config = stack(
        llm__load__contextLength=512, load__gpuSplitConfig=USUAL_SPLIT, llm__load__llama__flashAttention=True
    )
    with connected(own.url, "llm") as client:
        loading = {"modelKey": "tiny", "identifier": "mine", "ttlMs": 3600000, "loadConfigStack": config}
        resolved, *progress, success = client.packets("loadModel", loading)
        assert (resolved["type"], resolved["info"]["modelKey"]) == ("resolved", "tiny")
        assert [packet["type"] for packet in progress] == ["progress"] * len(progress)
        assert progress[-1]["progress"] == 1.0
        info = success["info"]
        assert (info["identifier"], info["modelKey"], info["contextLength"]) == ("mine", "tiny", 512)
        assert info["ttlMs"] in range(3_500_000, 3_600_001)
        assert client.warnings == ["localllm ignores llm.load.llama.flashAttention."]
        assert _text(client.packets("predict", predict("<say>mine</say>", model="mine"))) == "mine"
        already = client.packets("getOrLoad", {"identifier": "tiny", "loadConfigStack": stack()})
        assert [packet["type"] for packet in already] == ["alreadyLoaded"]

        assert client.result("unloadModel", {"identifier": "mine"}) is None
        assert client.result("listLoaded") == []
        assert client.result("getModelInfo", {"specifier": of_model("tiny"), "throwIfNotFound": False}) is None
        started, *_, loaded = client.packets("getOrLoad", {"identifier": "tiny", "loadConfigStack": stack()})
        assert (started["type"], loaded["type"]) == ("startLoading", "loadSuccess")
        assert loaded["info"]["contextLength"] == 4096


def test_options_that_mean_nothing_here_are_told_once(llm: SdkClient) -> None:
    body = predict("<say>x</say>", speculativeDecoding__draftModel="other", topKSampling=3.0)
    for _ in range(2):
        llm.packets("predict", body)
    assert llm.warnings == ["localllm ignores llm.prediction.speculativeDecoding.draftModel."]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("maxPredictedTokens", 5),
        ("structured", {"type": "xml"}),
        ("tools", "all"),
        ("topKSampling", None),
        ("llama__logitBias", [["x"]]),
        ("promptTemplate", {"type": "jinja"}),
    ],
)
def test_a_value_of_another_form_is_an_error_and_no_bug(llm: SdkClient, field: str, value: object) -> None:
    if value is None:
        assert llm.packets("predict", predict("<say>x</say>", **{field: value}))[-1]["type"] == "success"
        return
    assert llm.error("predict", predict("x", **{field: value}))["errorData"] == {"code": "invalid_request"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"type": 3}',
        '{"type": "later"}',
        '{"a": NaN}',
        '{"type": "channelCreate", "channelId": "x"}',
        "[" * 5000,
    ],
)
def test_a_strange_frame_is_answered_with_a_warning_and_the_connection_lives(
    service: RunningService, text: str
) -> None:
    with connect(f"{service.url.replace('http', 'ws')}/llm", compression=None, proxy=None) as websocket:
        websocket.send('{"authVersion": 1, "clientIdentifier": "a", "clientPasskey": "b"}')
        assert json.loads(websocket.recv()) == {"success": True}
        websocket.send(text)
        assert json.loads(websocket.recv())["type"] == "communicationWarning"
        websocket.send(b"\x00")
        assert json.loads(websocket.recv())["type"] == "communicationWarning"
        websocket.send('{"type": "keepAlive"}')
        assert json.loads(websocket.recv()) == {"type": "keepAliveAck"}


def test_an_endpoint_that_is_not_here_says_so(service: RunningService) -> None:
    for namespace in ("llm", "plugins", "diagnostics", "runtime"):
        with connected(service.url, namespace) as client:
            answer = client.call("setConfigSchematics", {"schematics": {}})
            assert answer["error"]["title"] == f"localllm does not have {namespace}.setConfigSchematics of LM Studio."
            client.send({"type": "signalSubscribe", "endpoint": "status", "subscribeId": 4, "creationParameter": None})
            assert (error := client.receive())["type"] == "signalError"
            assert error["subscribeId"] == 4


def test_a_channel_is_acknowledged_and_a_second_of_its_number_refused(llm: SdkClient) -> None:
    channel = llm.open("predict", predict(f"<say>{'word ' * 100}</say>"))
    llm.send({"type": "channelCreate", "endpoint": "predict", "channelId": channel, "creationParameter": predict("x")})
    llm.send({"type": "channelSend", "channelId": channel, "message": {"type": "cancel"}, "ackId": 7})
    kinds = []
    while (frame := llm.receive())["type"] != "channelClose":
        kinds.append(frame["type"])
    assert "channelAck" in kinds
    assert any("is open already" in warning for warning in llm.warnings)


def test_a_file_that_is_no_picture_is_refused_with_the_reason(service: RunningService) -> None:
    with connected(service.url, "files") as client:
        for content, reason in (
            ("AAAA", "neither a picture nor a sound"),
            ("?", "Base64"),
            ("SUQz", "is not a picture"),
        ):
            answer = client.call("uploadFileBase64", {"name": "cat.png", "contentBase64": content})
            assert reason in answer["error"]["title"]
        held = client.result("uploadFileBase64", {"name": "cat.png", "contentBase64": FILE})
        assert (held["fileType"], held["sizeBytes"]) == ("image", len(picture_file()))
        again = client.result("uploadFileBase64", {"name": "cat.png", "contentBase64": FILE})
        assert again["identifier"] != held["identifier"]


@pytest.mark.slow
def test_the_service_ends_with_clients_connected(start_service: Callable[..., RunningService]) -> None:
    service = start_service()
    with connected(service.url, "system") as client:
        client.open("alive")
        assert client.result("getExperimentFlags") == []
        assert service.process.stdin is not None
        service.process.stdin.close()
        assert service.process.wait(timeout=PATIENCE_S) == 0


def test_a_service_listens_where_the_sdks_look() -> None:
    """`apiServerPorts` of both SDKs 1.5.0, in the order in which Python's tries them."""
    assert next(port for port in (41343, 52993, 16141, 39414, 22931) if port in CLIENTS_PORTS) == 41343


@pytest.mark.parametrize(("endpoint", "name"), [("loadModel", "modelKey"), ("getOrLoad", "identifier")])
async def test_a_cancelled_loading_leaves_no_model_behind(
    tmp_path: Path, tiny_model: Path, endpoint: str, name: str
) -> None:
    async with managing(library_settings(tmp_path, tiny_model), load_ms=300) as models:
        packets = await _load(models, endpoint, {name: "second"}, is_cancelled=True)
        assert not {"success", "loadSuccess"} & set(packets)
        while states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert (await _load(models, endpoint, {name: "second"}, is_cancelled=False))[-1] in ("success", "loadSuccess")


async def _load(models: ModelManager, endpoint: str, body: dict[str, Any], *, is_cancelled: bool) -> list[str]:
    """Return the kinds of packets of one loading, which is cancelled at its first progress if `is_cancelled`."""
    kinds: list[str] = []

    async def tell(_text: str) -> None:
        """Take a warning."""

    async def send(frame: Mapping[str, Any]) -> None:
        kinds.append(frame["message"]["type"])
        if is_cancelled and "rogress" in kinds[-1]:
            channel.is_cancelled.set()

    channel, record = Channel(1, send), RequestRecord()
    context = Context(SimpleNamespace(models=models, instances={}), "llm", record, tell)  # type: ignore[arg-type]
    with record.until_end:
        function = MODEL_ENDPOINTS[endpoint]
        await function.stream(context, function.parameter.model_validate(body), channel)
    return kinds


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}<assistant>{% if enable_thinking is false %}<think></think>{% endif %}"
)
PICTURE = {"type": "file", "name": "cat.png", "identifier": "x", "sizeBytes": 3, "fileType": "image"}


@pytest.fixture(scope="module")
def thinking(
    start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SdkClient]:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(TEMPLATE)

    path = tiny_llama(tmp_path_factory.mktemp("thinking") / "thinker.gguf", edit)
    with connected(start_service(model=str(path)).url, "llm") as client:
        yield client


def _formatted(client: SdkClient, *messages: tuple[str, object], **fields: object) -> str:
    config = stack(**{f"llm__prediction__{name}": value for name, value in fields.items()})
    body = {
        "specifier": of_model("thinker"),
        "history": history(*messages),
        "predictionConfigStack": config,
        "opts": {},
    }
    return str(client.result("applyPromptTemplate", body)["formatted"])


def test_reasoning_is_sent_apart_and_given_back_to_the_template(thinking: SdkClient) -> None:
    *packets, success = thinking.packets("predict", predict("<say><think>Hm</think>It snows.</say>", model="thinker"))
    fragments = [packet["fragment"] for packet in packets]
    kinds = list(dict.fromkeys(fragment["reasoningType"] for fragment in fragments))
    assert kinds == ["reasoningStartTag", "reasoning", "reasoningEndTag", "none"]
    assert success["stats"]["stopReason"] == "eosFound"
    sent = "".join(fragment["content"] for fragment in fragments)
    assert sent == "<think>Hm</think>\n\nIt snows."
    prompt = _formatted(thinking, ("user", "a"), ("assistant", sent), ("user", "b"))
    assert "<assistant><think>Hm</think>It snows.\n<user>b\n" in prompt


def test_reasoning_is_switched_off_by_the_sdks_option(thinking: SdkClient) -> None:
    assert _formatted(thinking, ("user", "a"), reasoning__enableThinking=False).endswith("<assistant><think></think>")


def test_reasoning_stays_in_the_text_where_it_is_not_to_be_parsed(thinking: SdkClient) -> None:
    off = {"enabled": False, "startString": "", "endString": ""}
    body = predict("<say><think>Hm</think>It snows.</say>", model="thinker", reasoning__parsing=off)
    fragments = [packet["fragment"] for packet in thinking.packets("predict", body)[:-1]]
    assert {fragment["reasoningType"] for fragment in fragments} == {"none"}
    assert "".join(fragment["content"] for fragment in fragments) == "<think>Hm</think>It snows."


def test_a_picture_of_an_earlier_turn_becomes_a_note_and_as_the_question_an_error(thinking: SdkClient) -> None:
    earlier = ("user", [{"type": "text", "text": "Look"}, PICTURE])
    prompt = _formatted(thinking, earlier, ("assistant", "Yes."), ("user", "And now?"))
    assert "Look" in prompt
    assert "cat.png" not in prompt
    body = {**predict("", model="thinker"), "history": history(("user", [PICTURE]))}
    assert thinking.error("predict", body)["title"]


@pytest.mark.slow
def test_a_system_prompt_of_the_configuration_comes_first(thinking: SdkClient) -> None:
    assert _formatted(thinking, ("user", "a"), systemPrompt="Be brief.").startswith("<system>Be brief.\n<user>a")
