"""Filling in the middle in every dialect, by a fake model whose vocabulary has the tokens for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gguf
import pytest

from tests.app.running import RunningService
from tests.quantizer.gguf_files import tiny_llama

IDS = {"pre": 1, "suf": 2, "mid": 3, "rep": 4, "sep": 5}  # within the 256 bytes that the fake engine knows
CODE = "return a\n\n    b\nc"
ASK: dict[str, Any] = {"input_prefix": f"def f():\n    <say>{CODE}</say>", "input_suffix": "\n", "n_predict": 40}
N_AROUND = len(ASK["input_prefix"]) + len(ASK["input_suffix"]) + 3


@pytest.fixture(scope="module")
def filling(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    def edit(writer: gguf.GGUFWriter) -> None:
        for name, token in IDS.items():
            writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)

    path = tiny_llama(tmp_path_factory.mktemp("fim") / "coder.gguf", edit)
    return start_service(model=str(path))


def test_a_middle_is_filled_as_llama_server_does(filling: RunningService) -> None:
    answer = filling.http.post("/infill", json=ASK)
    assert f'"content":{json.dumps(CODE)}' in answer.text, "llama.vim looks for it without a blank"
    body = answer.json()
    assert body["stop_type"] == "eos"
    assert body["tokens_evaluated"] == N_AROUND
    assert body["timings"]["predicted_n"] == len(CODE)


def test_typed_text_counts_as_the_end_of_the_prefix(filling: RunningService) -> None:
    body = {"input_prefix": "def f():\n", "prompt": "    <say>x</say>", "input_suffix": "\n"}
    assert filling.http.post("/infill", json=body).json()["content"] == "x"


def test_other_files_come_first_with_their_names(filling: RunningService) -> None:
    extra = [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y = 2\n", "time": 5}]
    answer = filling.http.post("/infill", json=ASK | {"input_extra": extra}).json()
    names = "project\na.py\nfilename\nfilename\n"
    assert answer["tokens_evaluated"] == N_AROUND + len(names) + len("x = 1\ny = 2\n") + 4


def test_a_text_cannot_write_special_tokens_into_the_prompt(filling: RunningService) -> None:
    answer = filling.http.post("/infill", json={"input_prefix": "<|im_start|>", "n_predict": 1}).json()
    assert answer["tokens_evaluated"] == len("<|im_start|>") + 3


def test_a_warm_up_returns_no_text_and_the_next_request_finds_its_prompt(filling: RunningService) -> None:
    body = {"input_prefix": "z" * 300, "input_suffix": "y" * 50}
    warm = {"n_predict": 0, "samplers": [], "t_max_prompt_ms": 1, "response_fields": [""], "id_slot": 10**9}
    assert filling.http.post("/infill", json=body | warm).text == "{}"
    answer = filling.http.post("/infill", json=body | {"n_predict": 1}).json()
    assert answer["timings"]["cache_n"] >= 300


def test_only_selected_fields_are_returned_under_their_paths(filling: RunningService) -> None:
    fields = ["content", "timings/prompt_n", "timings/nothing", "generation_settings/n_predict"]
    answer = filling.http.post("/infill", json=ASK | {"response_fields": fields}).json()
    assert set(answer) == {"content", "timings/prompt_n", "generation_settings/n_predict"}
    assert answer["generation_settings/n_predict"] == 40


def test_several_fillings_are_an_array(filling: RunningService) -> None:
    body = {"input_prefix": "abc", "n_cmpl": 3, "n_predict": 4, "seed": 1, "ignore_eos": True}
    answer = filling.http.post("/infill", json=body).json()
    assert [len(answer["content"]) for answer in answer] == [4, 4, 4]


def test_a_line_indented_less_ends_the_filling(filling: RunningService) -> None:
    answer = filling.http.post("/infill", json=ASK | {"n_indent": 4}).json()
    assert answer["content"] == "return a\n\n    b"


def test_a_filling_streams(filling: RunningService) -> None:
    response = filling.http.post("/infill", json=ASK | {"stream": True})
    *texts, end = [json.loads(part.removeprefix("data: ")) for part in response.text.strip().split("\n\n")]
    assert "".join(part["content"] for part in texts) == CODE
    assert [part["stop"] for part in texts] == [False] * len(texts)
    assert end["stop"] is True


def test_mistrals_route_answers_like_a_chat(filling: RunningService) -> None:
    body = {"prompt": ASK["input_prefix"], "suffix": "\n", "max_tokens": 40, "model": "coder"}
    (choice,) = filling.http.post("/v1/fim/completions", json=body).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": CODE}


def test_completions_and_ollama_fill_where_they_are_given_a_suffix(filling: RunningService) -> None:
    body = {"prompt": ASK["input_prefix"], "suffix": "\n"}
    openai = filling.http.post("/v1/completions", json=body).json()
    ollama = filling.http.post("/api/generate", json=body | {"stream": False}).json()
    assert openai["choices"][0]["text"] == ollama["response"] == CODE
    assert openai["usage"]["prompt_tokens"] == ollama["prompt_eval_count"] == N_AROUND


def test_ollamas_clients_see_that_it_can(filling: RunningService) -> None:
    shown = filling.http.post("/api/show", json={"model": "coder"}).json()
    assert "insert" in shown["capabilities"]
    assert ".Suffix" in shown["template"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", {"input_prefix": "a"}),
        ("/v1/fim/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/api/generate", {"prompt": "a", "suffix": "b"}),
    ],
)
def test_a_model_without_the_tokens_is_refused(service: RunningService, path: str, body: dict[str, Any]) -> None:
    response = service.http.post(path, json=body)
    assert response.status_code == 400, "clients ask again after a 5xx"
    assert "cannot fill in the middle" in response.text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n_indent": -1}, "n_indent"),
        ({"n_predict": -5}, "max_tokens"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_extra": [{"text": "x"}] * 257}, "input_extra"),
        ({"json_schema": {"not": {}}}, "'not'"),
    ],
)
def test_unsupported_requests_are_refused(filling: RunningService, change: dict[str, Any], word: str) -> None:
    response = filling.http.post("/infill", json=ASK | change)
    assert response.status_code == response.json()["error"]["code"] == 400
    assert word in response.json()["error"]["message"]
