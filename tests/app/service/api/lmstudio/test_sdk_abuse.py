"""No frame is a bug: whatever a client sends in a field, it is answered, or refused with a reason."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from app.common.keys import KeyScope
from app.service.api.lmstudio.sdk_routes import _NAMESPACES
from app.service.http.errors import BUG
from tests.app.running import RunningService
from tests.app.service.api.lmstudio.sdk_client import connected, history, of_model, predict, stack

TOOLS = {"type": "toolArray", "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
TURNS = history(
    ("system", "s"),
    ("user", [{"type": "file", "name": "cat.png", "identifier": "x", "sizeBytes": 3, "fileType": "image"}]),
    (
        "assistant",
        [
            {"type": "text", "text": "<think>hm</think>a"},
            {
                "type": "toolCallRequest",
                "toolCallRequest": {"id": "1", "type": "function", "name": "f", "arguments": {}},
            },
        ],
    ),
    ("tool", [{"type": "toolCallResult", "content": "b", "toolCallId": "1"}]),
    ("user", "<say>c</say>"),
)
CONFIG = predict(
    "<say>a</say>",
    temperature=0.1,
    maxPredictedTokens={"checked": True, "value": 3},
    structured={"type": "json", "jsonSchema": {"type": "object"}},
    tools=TOOLS,
    toolChoice={"type": "generic", "mode": "auto"},
    llama__logitBias=[[3, 1]],
    llama__mirostatSampling={"version": 1, "learningRate": 1, "targetEntropy": 1},
    reasoning__budgetTokens={"checked": True, "value": 3},
    contextOverflowPolicy="stopAtLimit",
)
LOADING = stack(
    llm__load__contextLength=4096, llm__load__llama__kCacheQuantizationType={"checked": True, "value": "f16"}
)
VALID: dict[str, dict[str, Any]] = {
    "predict": {**CONFIG, "history": TURNS},
    "completeRawText": {
        "modelSpecifier": of_model("tiny"),
        "rawPrompt": "<say>a</say>",
        "predictionConfigStack": stack(),
    },
    "applyPromptTemplate": {
        "specifier": of_model("tiny"),
        "history": TURNS,
        "predictionConfigStack": stack(),
        "opts": {},
    },
    "loadModel": {"modelKey": "tiny", "identifier": "x", "ttlMs": 10**6, "loadConfigStack": LOADING},
    "getOrLoad": {"identifier": "tiny", "loadTtlMs": 10**6, "loadConfigStack": LOADING},
    "tokenize": {"specifier": of_model("tiny"), "inputString": "a"},
    "embedString": {"modelSpecifier": of_model("tiny"), "inputString": "a"},
    "getModelInfo": {"specifier": of_model("tiny"), "throwIfNotFound": True},
    "unloadModel": {"identifier": "nothing"},
    "searchModels": {"opts": {"searchTerm": "", "limit": 5, "compatibilityTypes": ["gguf"]}},
    "downloadModel": {"downloadIdentifier": ""},
    "uploadFileBase64": {"name": "a", "contentBase64": "YQ=="},
}
STRANGE: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "\ud800",
    "\0",
    -1,
    10**30,
    1e300,
    True,
    [[[]]],
    {"type": "x"},
    "x" * 70_000,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a parameter."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _places(part, (*path, key))


def _with(value: Any, path: tuple[Any, ...], strange: Any) -> Any:
    if not path:
        return strange
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = strange
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", sorted(VALID))
def test_no_value_of_any_field_is_a_bug(service: RunningService, endpoint: str) -> None:
    namespace = next(name for name, endpoints in _NAMESPACES.items() if endpoint in endpoints)
    is_channel = endpoint in {"predict", "completeRawText", "loadModel", "getOrLoad", "downloadModel"}
    with connected(service.url, namespace) as client:
        for path in _places(VALID[endpoint]):
            for strange in STRANGE:
                parameter = _with(VALID[endpoint], path, strange)
                frame = _answer(client, endpoint, parameter, is_channel=is_channel)
                if "error" in frame:
                    assert BUG.cause not in frame["error"]["title"], (path, strange)
        assert client.call("nothing")["type"] == "rpcError"


def _answer(client: Any, endpoint: str, parameter: Any, *, is_channel: bool) -> dict[str, Any]:
    """Return the last frame of a call or a channel."""
    if not is_channel:
        return dict(client.call(endpoint, parameter))
    client.open(endpoint, parameter)
    while (frame := client.receive())["type"] == "channelSend":
        pass
    return dict(frame)


@pytest.mark.parametrize("text", ['"\\ud800"', "[" * 5000, "NaN", "{"])
@pytest.mark.parametrize(
    ("begins", "answer"),
    [
        ('{"type": "rpcCall", "endpoint": "tokenize", "callId": 7, "parameter": ', {"type": "rpcError", "callId": 7}),
        ('{"type":"channelCreate","channelId":8,"creationParameter":', {"type": "channelError", "channelId": 8}),
    ],
)
def test_what_cannot_be_read_is_an_error_of_its_call(
    service: RunningService, begins: str, answer: dict[str, Any], text: str
) -> None:
    """JavaScript's strings may hold half a character, which JSON cannot; a call without an answer would wait."""
    with connected(service.url, "llm") as client:
        client.send_text(f"{begins}{text}}}")
        assert answer.items() <= client.receive().items()


def test_every_endpoint_says_what_a_key_needs_for_it() -> None:
    managing = {
        f"{name}.{endpoint}"
        for name, endpoints in _NAMESPACES.items()
        for endpoint, function in endpoints.items()
        if function.scope is KeyScope.MANAGE
    }
    loads = {f"{name}.{verb}" for name in ("llm", "embedding") for verb in ("loadModel", "unloadModel")}
    assert managing == loads | {
        f"repository.{verb}" for verb in ("searchModels", "getModelDownloadOptions", "downloadModel")
    }
