"""llama-server, as vendored in llama-cpp-python 0.3.36: its README, its unit tests, and what it was seen to answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row

_COMPLETION = "POST /completion"
_ASK: dict[str, Any] = {"model": MODEL, "prompt": "hello", "n_predict": 4, "temperature": 0}
_CHAT: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "hello"}]}
_README, _SEEN = "tools/server/README.md", "seen on llama-server of 0.3.36"
_SETTINGS = (
    *("seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "stop", "max_tokens", "n_predict", "n_keep"),
    *("ignore_eos", "n_probs", "samplers", "post_sampling_probs"),
)
_METRICS = (
    *("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total"),
    *("tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max", "spec_decode_num_draft_tokens_total"),
    *("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total", "prompt_tokens_seconds"),
    *("predicted_tokens_seconds", "requests_processing", "requests_deferred", "n_busy_slots_per_decode"),
)


def _embedding_rows() -> Iterator[Row]:
    forms: dict[str, tuple[Any, int]] = {
        "token ids": ([12, 34, 56], 1),
        "texts among token ids": ([12, 34, "string", 56, 78], 1),
        "texts and token ids": (["string1", [12, 34, 56]], 2),
        "lists with texts among token ids": ([[12, 34, 56], [12, "string", 34, 56]], 2),
        "a prompt": ({"prompt_string": "string"}, 1),
        "parts": ({"content": [{"type": "text", "text": "string"}]}, 1),
        "all of them": (["string1", {"prompt_string": "a"}, {"content": [{"type": "text", "text": "b"}]}], 3),
    }
    source = "tools/server/tests/unit/test_embedding.py, test_embedding_mixed_input"
    for form, (value, n_vectors) in forms.items():
        for path, field in (("/embedding", "content"), ("/embeddings", "content")):
            yield Row(
                name=f"a vector at {path} of {form}",
                ask=Ask(f"POST {path}", {"model": MODEL, field: value}),
                source=source,
                holds={"*.index": list(range(n_vectors)), "*.embedding.0.0": lambda found: bool(found)},
            )
    wrong: dict[str, Any] = {
        "nothing": [],
        "an object that is a text": {"content": "string"},
        "an unknown part": {"content": [{"type": "unknown"}]},
        "a picture": {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        "a prompt with a picture": {"prompt_string": "a", "multimodal_data": ["AAAA"]},
        "token ids beside lists": [12, [34]],
    }
    for form, value in wrong.items():
        is_500 = "picture" in form or "lists" in form
        yield Row(
            name=f"a vector of {form} is an error",
            ask=Ask("POST /embedding", {"model": MODEL, "content": value}),
            source="tools/server/tests/unit/test_embedding.py, test_embedding_input_invalid",
            status=500 if is_500 else 400,
            holds={"error.message": str},
            otherwise="A fault of the request is a 400, for some of which llama-server has a 500" if is_500 else "",
            our_status=400,
            ours={"error.message": str},
        )


ROWS: tuple[Row, ...] = (
    Row(
        name="no response_fields are all fields",
        ask=Ask(_COMPLETION, {**_ASK, "response_fields": []}),
        source=_SEEN,
        holds={"content": str, "generation_settings.temperature": 0.0, "timings": dict},
    ),
    Row(
        name="response_fields that no answer has are an empty object",
        ask=Ask(_COMPLETION, {**_ASK, "response_fields": [""]}),
        source="llama.vim warms up so",
        holds={"content": ABSENT},
    ),
    Row(
        name="the settings of a generation are all there",
        ask=Ask(_COMPLETION, _ASK),
        source=_README,
        holds={"generation_settings": lambda found: [name for name in _SETTINGS if name not in found] == []},
    ),
    Row(
        name="a schema holds a chat, too",
        ask=Ask("POST /v1/chat/completions", {**_CHAT, "json_schema": {"const": "42"}}),
        source="tools/server/tests/unit/test_chat_completion.py, test_completion_with_json_schema",
        holds={"choices.0.message.content": str, "warnings": ABSENT},
    ),
    Row(
        name="a prompt that opens no answer",
        ask=Ask("POST /apply-template", {**_CHAT, "add_generation_prompt": False}),
        source=_README,
        holds={"prompt": lambda found: not found.rstrip().endswith("assistant")},
    ),
    Row(
        name="every figure is in the metrics",
        ask=Ask("GET /metrics"),
        first=(Ask(_COMPLETION, _ASK),),
        source="tools/server/README.md, GET /metrics",
        holds={"": lambda text: [name for name in _METRICS if f"llamacpp:{name}" not in text] == []},
    ),
    Row(
        name="probabilities after the samplers",
        ask=Ask(_COMPLETION, {**_ASK, "n_probs": 2, "post_sampling_probs": True}),
        source="tools/server/README.md, post_sampling_probs",
        holds={
            "completion_probabilities.0.prob": 1.0,
            "completion_probabilities.0.top_probs.0.prob": 1.0,
            "completion_probabilities.0.top_probs.1": ABSENT,
            "completion_probabilities.0.logprob": ABSENT,
            "completion_probabilities.0.top_logprobs": ABSENT,
            "generation_settings.post_sampling_probs": True,
        },
    ),
    Row(
        name="tokens without a chance are not among those after the samplers",
        ask=Ask(_COMPLETION, {**_ASK, "n_probs": 10, "post_sampling_probs": True, "temperature": 1, "top_k": 2}),
        source="tools/server/tests/unit/test_completion.py, test_n_probs_post_sampling",
        holds={
            "completion_probabilities.0.prob": lambda found: 0 < found < 1,
            "completion_probabilities.0.top_probs": lambda found: len(found) == 2,
            "completion_probabilities.0.top_probs.*.prob": lambda found: abs(sum(found) - 1) < 1e-6,
        },
    ),
    Row(
        name="probabilities after the samplers in a stream",
        ask=Ask(_COMPLETION, {**_ASK, "n_probs": 2, "post_sampling_probs": True, "stream": True}),
        source="tools/server/README.md, post_sampling_probs",
        holds={"0.completion_probabilities.0.prob": 1.0, "0.completion_probabilities.0.logprob": ABSENT},
    ),
    Row(
        name="probabilities after the samplers in a chat",
        ask=Ask(
            "POST /v1/chat/completions",
            {**_CHAT, "logprobs": True, "top_logprobs": 2, "temperature": 0, "post_sampling_probs": True},
        ),
        source="tools/server/server-task.cpp, completion_token_output",
        holds={"choices.0.logprobs.content.0.prob": 1.0},
        otherwise="OpenAI's routes keep OpenAI's names: `logprob` is then the logarithm of that probability",
        ours={"choices.0.logprobs.content.0.logprob": 0.0},
    ),
    *_embedding_rows(),
    Row(
        name="the forms of an input at OpenAI's route",
        ask=Ask("POST /v1/embeddings", {"model": MODEL, "input": [12, 34, "string", 56, 78]}),
        source="tools/server/tests/unit/test_embedding.py, test_embedding_mixed_input",
        holds={"data.0.embedding": list},
        otherwise="OpenAI's route for embeddings takes OpenAI's forms of `input`",
        our_status=400,
    ),
    Row(
        name="an answer cannot go on and begin",
        ask=Ask("POST /v1/chat/completions", {**_CHAT, "add_generation_prompt": True, "continue_final_message": True}),
        source="tools/server/tests/unit/test_chat_completion.py, …_continue_final_message_mutual_exclusion",
        status=400,
        holds={"error.message": str},
    ),
    *(
        Row(
            name=f"progress of a prompt, however short, in {path}",
            ask=Ask(path, {**body, "stream": True, "return_progress": True}),
            source="tools/server/tests/unit/test_chat_completion.py, test_return_progress",
            holds={
                "*.prompt_progress": lambda found: (
                    found[0]["processed"] == found[0]["cache"] and found[-1]["processed"] == found[-1]["total"] > 0
                )
            },
        )
        for path, body in ((_COMPLETION, _ASK), ("POST /v1/chat/completions", _CHAT))
    ),
    Row(
        name="progress of the prompt in a response's events",
        ask=Ask("POST /v1/responses", {"model": MODEL, "input": "hello", "stream": True, "return_progress": True}),
        source="tools/server/tests/unit/test_compat_oai_responses.py, test_responses_stream_with_llama_telemetry",
        holds={
            "*.prompt_progress": lambda found: len(found) > 0,
            "*.timings": lambda found: found[-1]["predicted_n"] > 0,
        },
    ),
    Row(
        name="biases are among the settings",
        ask=Ask(_COMPLETION, {**_ASK, "logit_bias": [[65, False], [66, 2.0]]}),
        source="tools/server/server-task.cpp, task_params::to_json",
        holds={"generation_settings.logit_bias": [{"token": 65, "bias": None}, {"token": 66, "bias": 2.0}]},
    ),
    Row(
        name="end tokens that are ignored are among the biases",
        ask=Ask(_COMPLETION, {**_ASK, "ignore_eos": True}),
        source="tools/server/tests/unit/test_ignore_eos.py",
        holds={"generation_settings.logit_bias": lambda found: len(found) > 0},
        otherwise="`ignore_eos` stands for itself in `generation_settings`, and adds no biases",
        ours={"generation_settings.logit_bias": [], "generation_settings.ignore_eos": True},
    ),
    *(
        Row(
            name=f"a part of another file without its text is an error: {part}",
            ask=Ask("POST /infill", {"model": MODEL, "input_prefix": "a", "input_suffix": "b", "input_extra": [part]}),
            source="tools/server/tests/unit/test_infill.py, test_invalid_input_extra_req",
            status=400,
            holds={"error.message": str},
        )
        for part in ({}, {"filename": "ok"}, {"filename": 123, "text": "abc"})
    ),
    Row(
        name="a prompt that is too long",
        ask=Ask("POST /v1/chat/completions", {**_CHAT, "messages": [{"role": "user", "content": "long " * 9000}]}),
        source="tools/server/tests/unit/test_chat_completion.py, test_context_size_exceeded",
        status=400,
        holds={"error.type": "exceed_context_size_error", "error.n_prompt_tokens": int, "error.n_ctx": int},
        otherwise="The errors of OpenAI's routes have OpenAI's types and codes",
        our_status=400,
        ours={
            "error.type": "invalid_request_error",
            "error.code": "context_length_exceeded",
            "error.n_prompt_tokens": lambda found: found > 4096,
            "error.n_ctx": 4096,
        },
    ),
    Row(
        name="when the process started",
        ask=Ask("GET /metrics"),
        source="tools/server/tests/unit/test_metrics.py, fetch_metrics",
        holds={"@Process-Start-Time-Unix": re.compile(r"^\d+$")},
    ),
    Row(
        name="metrics without a label",
        ask=Ask("GET /metrics"),
        first=(Ask(_COMPLETION, _ASK),),
        source="tools/server/tests/unit/test_metrics.py, parse_metrics",
        holds={"": re.compile(r"(?m)^llamacpp:tokens_predicted_total \d")},
        otherwise="Metrics have the label `model`, since there may be several",
        ours={"": re.compile(r"(?m)^llamacpp:tokens_predicted_total\{model=")},
    ),
    Row(
        name="the slot of a request",
        ask=Ask(_COMPLETION, {**_ASK, "id_slot": 1, "stream": False}),
        source="tools/server/README.md, id_slot",
        holds={"id_slot": 1},
        otherwise="`id_slot` chooses nothing: what was computed belongs to the text, and any answer may use it",
        ours={"id_slot": ABSENT, "warnings": ABSENT, "content": str},
    ),
    *(
        Row(
            name=f"the state of a slot: {action}",
            ask=Ask(f"POST /slots/0?action={action}", {"filename": "slot.bin"}),
            source="tools/server/tests/unit/test_slot_save.py",
            holds={"id_slot": 0},
            otherwise="The state of a slot cannot be saved, restored or erased by hand: it is kept by itself",
            our_status=501,
        )
        for action in ("save", "restore", "erase")
    ),
    Row(
        name="the first chunk of a chat",
        ask=Ask("POST /v1/chat/completions", {**_CHAT, "stream": True}),
        source="tools/server/tests/unit/test_chat_completion.py, test_chat_completion_stream",
        holds={"0.choices.0.delta.content": None},
        otherwise='The first chunk of a chat has the content "", as OpenAI\'s',
        ours={"0.choices.0.delta.content": ""},
    ),
    Row(
        name="the events of a stream with probabilities",
        ask=Ask(_COMPLETION, {**_ASK, "n_predict": 64, "n_probs": 2, "stream": True}),
        source="tools/server/tests/unit/test_completion.py, test_n_probs_stream",
        holds={"*.completion_probabilities": lambda found: {len(each) for each in found} == {1}},
        otherwise="An event may have several tokens, of which `tokens` and `completion_probabilities` have all",
        ours={
            "*.completion_probabilities.*.id": lambda found: len([token for each in found for token in each]) > 1,
            "*.tokens": lambda found: all(found[:-1]),
        },
    ),
    Row(
        name="a web page of another origin",
        ask=Ask("OPTIONS /v1/completions", headers={"Origin": "http://web.mydomain.fr"}),
        source="tools/server/tests/unit/test_security.py, test_cors_options",
        holds={"@Access-Control-Allow-Methods": re.compile("POST")},
        otherwise="Web pages may use the service where `origins` names them; others are a 403",
        our_status=403,
    ),
    Row(
        name="what models can do",
        ask=Ask("GET /v1/models"),
        source="tools/server/tests/unit/test_vision_api.py, test_v1_models_supports_multimodal_capability",
        holds={"models.0.capabilities": list},
        otherwise="`data` of `/v1/models` has what each model reads (`architecture`)",
        ours={"data.*.architecture.input_modalities": lambda found: ["text"] in found},
    ),
    Row(
        name="the build in the fingerprint",
        ask=Ask("POST /v1/chat/completions", _CHAT),
        source="tools/server/tests/unit/test_chat_completion.py, test_chat_completion",
        holds={"system_fingerprint": re.compile("^b")},
        otherwise="`system_fingerprint` has localllm's version",
        ours={"system_fingerprint": re.compile("^localllm-")},
    ),
    Row(
        name="two answers at the end of a chat",
        ask=Ask(
            "POST /v1/chat/completions",
            {
                **_CHAT,
                "messages": [*_CHAT["messages"], *2 * [{"role": "assistant", "content": "test"}]],
            },
        ),
        source="tools/server/tests/unit/test_chat_completion.py, test_invalid_chat_completion_req",
        status=400,
        otherwise="two questions become one",
        ours={"choices.0.message.content": str},
    ),
    *(
        Row(
            name=f"{ask.to} of the server's own tools, sessions and page",
            ask=ask,
            source=f"tools/server/tests/unit/{source}",
            otherwise=(
                "A web page of its own, its tools (`/tools`, `/cors-proxy`), streams that are resumed (`/v1/stream`), "
                "Vertex AI's `/predict` and the routes of a router (`/models/load` …) are left out"
            ),
            our_status=status,
        )
        for ask, status, source in (
            (Ask("GET /tools"), 404, "test_mcp_servers.py"),
            (Ask("POST /tools", {"tool": "read_file", "params": {}}), 404, "test_tools_builtin.py"),
            (Ask("GET /cors-proxy?url=http%3A%2F%2F127.0.0.1"), 404, "test_proxy.py"),
            (Ask("GET /v1/stream?conv_id=a&from=0"), 404, "test_stream.py"),
            (Ask("POST /predict", {"instances": []}), 404, "test_compat_gcp.py"),
            (Ask("POST /models/load", {"model": MODEL}), 405, "test_router.py"),
        )
    ),
    Row(
        name="filling in with a model that was not trained for it",
        ask=Ask("POST /infill", {"model": MODEL, "input_prefix": "a", "input_suffix": "b"}),
        source="tools/server/tests/unit/test_infill.py, test_without_input_extra",
        status=501,
        otherwise="clients ask again after a 5xx",
        our_status=400,
        ours={"error.message": str},
    ),
)
