"""What a request does not say about sampling comes from the model, in every dialect, and a request's own value wins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.engine.request import Request, SamplingParams
from app.library.local.model_sampling import generation_config_path
from app.service.models.served_model import ServedModel
from tests.app.conftest import CHAT_TEMPLATE
from tests.app.one_file_service import BASE, MADE, Service, serving
from tests.quantizer.gguf_files import tiny_llama

STATED = {"temperature": 0.25, "top_k": 7, "repeat_penalty": 1.25, "penalty_last_n": 99}
HELLO = [{"role": "user", "content": "hello"}]
# A request of each dialect, and how it says its temperature.
DIALECTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "openai": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}, "temperature"),
    "openai text": ("/v1/completions", {"prompt": "hello", "max_tokens": 2}, "temperature"),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 2}, "temperature"),
    "anthropic": ("/v1/messages", {"messages": HELLO, "max_tokens": 2}, "temperature"),
    "ollama": ("/api/chat", {"messages": HELLO, "stream": False, "options": {"num_predict": 2}}, "options.temperature"),
    "ollama text": (
        "/api/generate",
        {"prompt": "hello", "stream": False, "options": {"num_predict": 2}},
        "options.temperature",
    ),
    "llama-server": ("/completion", {"prompt": "hello", "n_predict": 2}, "temperature"),
    "lm studio": ("/api/v1/chat", {"input": "hello", "max_output_tokens": 2}, "temperature"),
}


def _with_keys(writer: gguf.GGUFWriter) -> None:
    writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_sampling_temp(0.25)
    writer.add_sampling_top_k(7)
    writer.add_sampling_penalty_repeat(1.25)
    writer.add_sampling_penalty_last_n(99)
    writer.add_float32("general.sampling.min_p", float("nan"))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    model = tiny_llama(tmp_path / "stating.gguf", _with_keys)
    async with serving(tmp_path, model) as service:
        yield service


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The sampling of every request that reaches a model."""
    seen: list[SamplingParams] = []
    answer = ServedModel.answer

    def noted(model: ServedModel, *requests: Request) -> Any:
        seen.extend(request.sampling for request in requests)
        return answer(model, *requests)

    monkeypatch.setattr(ServedModel, "answer", noted)
    return seen


async def _post(service: Service, path: str, body: dict[str, Any], model: str = BASE) -> Any:
    answer = await service.http.post(path, json={"model": model, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_a_request_does_not_say_comes_from_the_model(
    service: Service, asked: list[SamplingParams], dialect: str
) -> None:
    path, body, _ = DIALECTS[dialect]
    await _post(service, path, body)
    assert {name: getattr(asked[-1], name) for name in STATED} == STATED
    assert (asked[-1].top_p, asked[-1].min_p) == (0.95, 0.05), "what the model does not state, or as nonsense"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_a_requests_own_value_wins(
    service: Service, asked: list[SamplingParams], dialect: str, temperature: float
) -> None:
    path, body, place = DIALECTS[dialect]
    whole = json.loads(json.dumps(body))
    *outer, name = place.split(".")
    target = whole[outer[0]] if outer else whole
    target[name] = temperature
    await _post(service, path, whole)
    assert (asked[-1].temperature, asked[-1].top_k) == (temperature, 7)


async def test_a_model_made_of_another_keeps_its_sampling_and_adds_its_own(
    service: Service, asked: list[SamplingParams]
) -> None:
    await service.make(MADE, parameters={"temperature": 0.75, "top_p": 0.5})
    await _post(service, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}, MADE)
    assert (asked[-1].temperature, asked[-1].top_p, asked[-1].top_k) == (0.75, 0.5, 7)


async def test_a_file_beside_a_model_counts_from_the_next_request(
    service: Service, asked: list[SamplingParams]
) -> None:
    path = service.models.default.ref.path
    await _post(service, "/v1/completions", {"prompt": "hello", "max_tokens": 2})
    generation_config_path(path).write_text('{"top_p": 0.33, "temperature": 0.9}')
    await _post(service, "/v1/completions", {"prompt": "hello", "max_tokens": 2})
    assert [each.top_p for each in asked] == [0.95, 0.33]
    assert asked[-1].temperature == 0.25, "the GGUF says it"


async def test_the_effective_values_and_whose_they_are_are_reported(service: Service) -> None:
    await _post(service, "/v1/completions", {"prompt": "hello", "max_tokens": 2})
    props = (await service.http.get("/props")).json()["default_generation_settings"]
    assert {name: props["params"][name] for name in STATED} == STATED
    assert (props["origins"]["top_k"], props["origins"]["min_p"]) == ("model", "localllm")
    (slot, *_) = (await service.http.get("/slots")).json()
    assert slot["params"]["temperature"] == 0.25
    shown = (await service.http.post("/api/show", json={"model": BASE})).json()["parameters"]
    assert {tuple(line.split()) for line in shown.splitlines()} == {
        ("temperature", "0.25"),
        ("top_k", "7"),
        ("repeat_last_n", "99"),
        ("repeat_penalty", "1.25"),
    }
    (status,) = (await service.http.get("/api/localllm/status")).json()["models"]
    assert status["sampling"]["options"]["temperature"] == {"value": 0.25, "origin": "model"}
    assert status["sampling"]["ignored"] == ["general.sampling.min_p is nan"]
