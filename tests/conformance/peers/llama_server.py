"""llama-server, as vendored in llama-cpp-python 0.3.36: its README, its unit tests, and what it was seen to answer."""

from __future__ import annotations

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
