from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.app.service.api import sdk


def embed(service: RunningService, **body: Any) -> dict[str, Any]:
    response = service.http.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    answered: dict[str, Any] = response.json()
    return answered


def test_every_shape_of_input_is_embedded_in_order(service: RunningService) -> None:
    one = embed(service, input="hello")
    assert one["object"] == "list"
    assert one["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    several = embed(service, input=["other", "hello"])
    assert [item["index"] for item in several["data"]] == [0, 1]
    assert several["data"][1]["embedding"] == pytest.approx(one["data"][0]["embedding"], abs=1e-6)
    tokens = list(b"hello")
    for same in (tokens, [tokens]):
        assert embed(service, input=same)["data"][0]["embedding"] == one["data"][0]["embedding"]


def test_base64_holds_the_same_floats(service: RunningService) -> None:
    floats = embed(service, input="hello")["data"][0]["embedding"]
    data = base64.b64decode(embed(service, input="hello", encoding_format="base64")["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(floats)}f", data)) == floats
    assert sum(value * value for value in floats) == pytest.approx(1.0)


def test_openais_client_embeds(service: RunningService) -> None:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        answered = client.embeddings.create(model="tiny", input=["hello", "world"])
    assert len(answered.data) == 2
    assert answered.data[0].embedding == pytest.approx(embed(service, input="hello")["data"][0]["embedding"])


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ""}, "empty"),
        ({"input": "x" * 300}, "300 tokens"),
        ({"input": "hello", "dimensions": 4}, "8 dimensions"),
        ({"input": "hello", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_invalid_inputs_are_refused(service: RunningService, body: dict[str, Any], cause: str) -> None:
    response = service.http.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert cause in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_a_model_without_a_rank_head_refuses_to_rank(service: RunningService, path: str) -> None:
    response = service.http.post(path, json={"query": "q", "documents": ["a"]})
    assert response.status_code == 400
    assert "cannot rank" in response.json()["error"]["message"]
