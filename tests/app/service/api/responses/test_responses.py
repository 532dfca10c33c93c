"""The fields of a response object and of its events: what is repeated, counted and reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.service.api.responses.requests import InputItem, ResponsesBody, encode_reasoning
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.app.service.api.responses.test_routes import CALL, TOOL, _events
from tests.quantizer.gguf_files import tiny_llama

# It gives earlier reasoning back to the model.
THINKS = (
    "{# <think></think> #}{% for message in messages %}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}"
)
THOUGHT = "<say><think>Hm, so.</think>Hej.</say>"


@pytest.fixture(scope="module")
def thinker(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    """A service with a model that thinks."""
    path = tiny_llama(
        tmp_path_factory.mktemp("thinker") / "thinker.gguf", lambda writer: writer.add_chat_template(THINKS)
    )
    return start_service(model=str(path))


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def both(service: RunningService, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the whole answer and the events of the streamed one, which end with the same output."""
    body = {"model": "", "temperature": 0, "max_output_tokens": 300, **fields}
    whole = service.http.post("/v1/responses", json=body)
    assert whole.status_code == 200, whole.text
    events = _events(service.http.post("/v1/responses", json=body | {"stream": True}).text)

    def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in item.items() if not name.endswith("id")} for item in output]

    assert without_ids(whole.json()["output"]) == without_ids(events[-1]["response"]["output"])
    return whole.json(), events


def of_kind(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == f"response.{name}"]


def test_a_response_repeats_the_request(service: RunningService) -> None:
    """openai 3.54, the type `Response`."""
    sent: dict[str, Any] = {
        "instructions": "Be kind.",
        "metadata": {"topic": "demo"},
        "tools": [TOOL, {"type": "web_search", "search_context_size": "low"}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 30,
        "max_tool_calls": 3,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "prompt_cache_key": "key",
        "safety_identifier": "someone",
        "user": "someone",
    }
    whole, events = both(service, input="<say>Hej.</say>", **sent)
    for response in (whole, events[0]["response"], events[-1]["response"]):
        assert {name: response[name] for name in sent} == sent | {
            "tools": [{"description": None, **TOOL}, sent["tools"][1]]
        }
        assert (response["truncation"], response["background"], response["store"]) == ("disabled", False, True)
        assert response["previous_response_id"] is response["conversation"] is None
    assert whole["completed_at"] >= whole["created_at"]


def test_values_in_force_are_reported_where_a_request_leaves_them_out(service: RunningService) -> None:
    response = service.http.post("/v1/responses", json={"input": "<say>a</say>"}).json()
    assert isinstance(response["temperature"], float)
    assert isinstance(response["top_p"], float)
    assert response["tool_choice"] == "auto"
    assert response["text"] == {"format": {"type": "text"}}
    assert response["reasoning"] == {"effort": None, "summary": None}
    assert (response["tools"], response["metadata"], response["instructions"]) == ([], {}, None)
    assert response["parallel_tool_calls"] is True


@pytest.mark.parametrize(
    "metadata", [{"a": 1}, {"a" * 65: ""}, {"a": "b" * 513}, {str(number): "" for number in range(17)}]
)
def test_metadata_has_limits(service: RunningService, metadata: dict[str, Any]) -> None:
    """openai 3.54: 16 pairs, names of 64 and values of 512 characters."""
    assert service.http.post("/v1/responses", json={"input": "a", "metadata": metadata}).status_code == 400


def test_a_call_ends_with_its_name(service: RunningService) -> None:
    _, events = both(service, input=f"<say>{CALL}</say>", tools=[TOOL])
    (done,) = of_kind(events, "function_call_arguments.done")
    assert done["name"] == "get_weather"
    assert done["arguments"] == "".join(event["delta"] for event in of_kind(events, "function_call_arguments.delta"))


def test_only_allowed_tools_are_offered() -> None:
    other = TOOL | {"name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    turn = ResponsesBody.model_validate({"input": "a", "tools": [TOOL, other], "tool_choice": choice}).turn()
    assert [tool.name for tool in turn.tools.tools] == ["other"]
    assert turn.tools.must_call


def test_usage_tells_what_was_cached_and_what_is_written(service: RunningService) -> None:
    asked = "<say>a</say> and never before"
    for _ in range(2):
        usage = both(service, input=asked)[0]["usage"]
        details = usage["input_tokens_details"]
        assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]
    assert details["cached_tokens"] > 0


@pytest.mark.parametrize(
    "wanted", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}]
)
def test_probabilities_come_with_the_text(service: RunningService, wanted: dict[str, Any]) -> None:
    """openai 3.54: `top_logprobs`, `include`."""
    whole, events = both(service, input="<say>Hej.</say>", **wanted)
    (part,) = whole["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Hej."
    assert all(len(entry["top_logprobs"]) == 2 and math.isfinite(entry["logprob"]) for entry in part["logprobs"])
    streamed = [entry for event in of_kind(events, "output_text.delta") for entry in event["logprobs"]]
    assert streamed == of_kind(events, "output_text.done")[0]["logprobs"] == part["logprobs"]
    assert whole["top_logprobs"] == 2


def test_probabilities_are_only_those_of_the_text(thinker: RunningService) -> None:
    for included in (["message.output_text.logprobs"], []):
        whole, _ = both(thinker, input=THOUGHT, include=included)
        reasoning, message = whole["output"]
        (part,) = message["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]) == ("Hej." if included else "")
        assert reasoning["content"][0]["text"] == "Hm, so."


def test_reasoning_is_counted(thinker: RunningService) -> None:
    whole, events = both(thinker, input=THOUGHT)
    for response in (whole, events[-1]["response"]):
        n_tokens = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert len("Hm, so.") <= n_tokens <= len("<think>Hm, so.</think>")


def test_reasoning_comes_as_its_summary_where_that_is_wanted(thinker: RunningService) -> None:
    """@ai-sdk/openai 3.0.141 (`reasoningSummary`) and openai-agents 0.24 show summaries only."""
    whole, events = both(thinker, input=THOUGHT, reasoning={"effort": "low", "summary": "detailed"})
    reasoning = whole["output"][0]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm, so."}]
    assert reasoning["content"] == []
    names = [event["type"] for event in events if "reasoning" in event["type"] and "delta" not in event["type"]]
    parts = ("part.added", "text.done", "part.done")
    assert names == [f"response.reasoning_summary_{name}" for name in parts]
    assert "".join(event["delta"] for event in of_kind(events, "reasoning_summary_text.delta")) == "Hm, so."
    assert all(event["summary_index"] == 0 for event in events if "summary" in event["type"])


def test_a_client_that_stores_itself_sends_reasoning_back(thinker: RunningService) -> None:
    """Codex 0.169 and @ai-sdk/openai 3.0.141 with `store: false`: `include: ["reasoning.encrypted_content"]`."""
    whole, _ = both(thinker, input=THOUGHT, store=False, include=["reasoning.encrypted_content"])
    reasoning = whole["output"][0]
    sent_back = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    (message,) = InputItem.model_validate(sent_back).messages()
    assert message.reasoning == "Hm, so."
    assert "encrypted_content" not in both(thinker, input=THOUGHT)[0]["output"][0]


@pytest.mark.parametrize("form", [{}, {"reasoning": {"summary": "auto"}}])
def test_earlier_reasoning_reaches_the_template_however_it_comes_back(
    thinker: RunningService, form: dict[str, Any]
) -> None:
    def n_tokens(**fields: Any) -> int:
        counted = thinker.http.post("/v1/responses/input_tokens", json={"model": "", **fields})
        assert counted.status_code == 200, counted.text
        return int(counted.json()["input_tokens"])

    question, again = {"role": "user", "content": THOUGHT}, {"role": "user", "content": "And?"}
    body = {"model": "", "input": [question], "include": ["reasoning.encrypted_content"], **form}
    answer = thinker.http.post("/v1/responses", json=body).json()
    reasoning, message = answer["output"]
    sealed = {**reasoning, "summary": [], "content": []}
    references = [{"type": "item_reference", "id": item["id"]} for item in (reasoning, message)]
    expected = len(f"{THOUGHT}\n<think>Hm, so.</think>Hej.\nAnd?\n")
    assert n_tokens(input=[again], previous_response_id=answer["id"]) == expected
    for earlier in ([reasoning, message], [sealed, message], references):
        assert n_tokens(input=[question, *earlier, again]) == expected
    assert n_tokens(input=[question, message, again]) == expected - len("<think>Hm, so.</think>")


@pytest.mark.parametrize("text", ["", "Hm.", "Å\n\U0001f600"])
def test_encoded_reasoning_is_read_again(text: str) -> None:
    item = InputItem.model_validate({"type": "reasoning", "encrypted_content": encode_reasoning(text)})
    assert [message.reasoning for message in item.messages()] == ([text] if text else [])


@pytest.mark.parametrize("foreign", ["gAAAAABo", "localllm:%", "localllm:\ud83d", "localllm:////"])
def test_reasoning_of_another_service_is_left_out(foreign: str) -> None:
    item = InputItem.model_validate({"type": "reasoning", "encrypted_content": foreign})
    assert all(isinstance(message.reasoning, str) for message in item.messages())


def test_an_item_that_is_cut_is_incomplete(service: RunningService) -> None:
    whole, events = both(service, input="<say>one two three</say>", max_output_tokens=3)
    assert whole["status"] == whole["output"][-1]["status"] == "incomplete"
    assert of_kind(events, "output_item.done")[-1]["item"]["status"] == "incomplete"
    assert of_kind(events, "incomplete")


@pytest.mark.slow
def test_a_response_that_went_on_after_its_limit_takes_its_text_along(client: sdk.openai.OpenAI) -> None:
    cut = client.responses.create(model="tiny", input="<say>one two three</say>", max_output_tokens=3, temperature=0)
    longer = client.responses.create(model="tiny", input="<say>more</say>", previous_response_id=cut.id)
    assert longer.usage is not None
    assert longer.usage.input_tokens == len(
        "<user><say>one two three</say>\n<assistant>one\n<user><say>more</say>\n<assistant>"
    )
