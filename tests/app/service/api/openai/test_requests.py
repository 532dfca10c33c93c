from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from app.engine.grammar.json_grammar import schema_grammar
from app.engine.request import IN_MEMORY, SamplingParams
from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import AnthropicMessage
from app.service.api.messages import ChatMessage
from app.service.api.ollama.requests import OllamaMessage
from app.service.api.openai.audio import TranscriptionBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.generation.media import NO_MEDIA, PromptMedia
from app.service.models.model_file import Senses
from app.settings.private_files import conversation_name

LLAMA_SERVER_FIELDS = {
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 1.5,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": -1,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
}


def _sampling(**fields: object) -> SamplingParams:
    (request,) = CompletionBody.model_validate({"prompt": "x", **fields}).completion_requests()
    return request.sampling


def test_the_fields_of_llama_server_reach_the_engine_under_their_names() -> None:
    assert _sampling(**LLAMA_SERVER_FIELDS) == SamplingParams(**LLAMA_SERVER_FIELDS)


def test_what_is_cached_belongs_to_a_conversation_or_stays_in_memory() -> None:
    def conversation(**fields: object) -> str:
        (request,) = CompletionBody.model_validate({"prompt": "x", **fields}).completion_requests()
        return request.conversation

    assert conversation() == conversation(prompt_cache_key="") == ""
    assert conversation(prompt_cache_key="../a") == conversation_name("../a") != conversation(prompt_cache_key="b")
    assert conversation(prompt_cache_key="a", prompt_cache_retention="in_memory") == IN_MEMORY
    assert conversation(prompt_cache_key="a", prompt_cache_retention="24h") == conversation_name("a")


def test_context_shift_and_limits_of_time_reach_the_engine() -> None:
    fields = {"context_shift": True, "n_keep": -1, "max_time": 9.5, "t_max_predict_ms": 1500}
    (request,) = CompletionBody(prompt="hello", **fields).completion_requests()
    assert (request.context_shift, request.n_keep) == (True, -1)
    assert (request.max_time_s, request.max_predict_s) == (9.5, 1.5)


def test_the_longest_draft_of_a_request_reaches_the_engine() -> None:
    bodies = [CompletionBody(prompt="hello"), CompletionBody(**{"prompt": "hello", "speculative.n_max": 0})]
    assert [body.completion_requests()[0].max_draft_tokens for body in bodies] == [None, 0]


@pytest.mark.parametrize("limit_ms", [None, 0, -1])
def test_llama_servers_ways_to_set_no_limit_of_time(limit_ms: int | None) -> None:
    (request,) = CompletionBody(prompt="hello", t_max_predict_ms=limit_ms).completion_requests()
    assert request.max_predict_s is None


@pytest.mark.parametrize(
    "fields",
    [{"max_time": 0}, {"max_time": "NaN"}, {"t_max_predict_ms": -5}, {"n_keep": -2}, {"speculative.n_max": -1}],
)
def test_limits_that_are_none_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        CompletionBody(prompt="hello", **fields).completion_requests()


def test_repeat_last_n_and_breakers_reach_the_engine() -> None:
    sampling = _sampling(repeat_last_n=-1, dry_sequence_breakers=["\n"])
    assert (sampling.penalty_last_n, sampling.dry_sequence_breakers) == (-1, ("\n",))


@pytest.mark.parametrize(
    ("biases", "pairs"),
    [
        ({"5": -100, "6": False}, ((5, -100.0), (6, -inf))),
        ([[5, 1.5], [6, False]], ((5, 1.5), (6, -inf))),
        ({"5": 0}, ((5, 0.0),)),
        ({}, ()),
        (None, ()),
    ],
)
def test_biases_come_by_token_id_as_an_object_or_as_pairs(biases: object, pairs: tuple[object, ...]) -> None:
    assert _sampling(logit_bias=biases).logit_bias == pairs


@pytest.mark.parametrize(
    ("fields", "n_logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ],
)
def test_chat_asks_for_logprobs_with_two_fields(fields: dict[str, object], n_logprobs: int | None) -> None:
    body = ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    assert body.turn().request.n_logprobs == n_logprobs


@pytest.mark.parametrize(("logprobs", "n_logprobs"), [(None, None), (False, None), (0, 0), (5, 5), (True, 1)])
def test_completions_ask_for_logprobs_with_a_number(logprobs: object, n_logprobs: int | None) -> None:
    body = CompletionBody.model_validate({"prompt": "x", "logprobs": logprobs})
    (request,) = body.completion_requests()
    assert request.n_logprobs == n_logprobs


def test_several_answers_differ_in_id_and_seed_only() -> None:
    first, second, third = CompletionBody.model_validate({"prompt": "x", "n": 3, "seed": 7}).completion_requests()
    assert [item.sampling.seed for item in (first, second, third)] == [7, 8, 9]
    assert len({item.request_id for item in (first, second, third)}) == 3
    assert replace(second, request_id=first.request_id, sampling=first.sampling) == first


def test_several_answers_without_a_seed_draw_one_each() -> None:
    requests = CompletionBody.model_validate({"prompt": "x", "n": 8}).completion_requests()
    assert {item.sampling.seed for item in requests} == {None}


SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}


@pytest.mark.parametrize(
    ("wanted", "grammar"),
    [
        ({"type": "text"}, ""),
        ({"type": "json_object"}, schema_grammar({"type": "object"})),
        ({"type": "json_object", "schema": SCHEMA}, schema_grammar(SCHEMA)),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
            schema_grammar(SCHEMA),
        ),
        (None, ""),
    ],
)
def test_a_response_format_becomes_a_grammar(wanted: object, grammar: str) -> None:
    assert _sampling(response_format=wanted).grammar == grammar


@pytest.mark.parametrize(("wanted", "is_split"), [(None, True), ("auto", True), ("deepseek", True), ("none", False)])
def test_thoughts_are_separated_by_default(wanted: str | None, is_split: bool) -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], "reasoning_format": wanted}
    assert ChatCompletionBody.model_validate(fields).turn().separates_reasoning is is_split


@pytest.mark.parametrize(
    ("biases", "pairs"),
    [
        ([["Paris", -5.5], [" no", False]], (("Paris", -5.5), (" no", -inf))),
        ({"Paris": -5, "²": False}, (("Paris", -5.0), ("²", -inf))),
        ([["12", 1]], (("12", 1.0),)),
    ],
)
def test_a_bias_may_be_of_a_text(biases: object, pairs: tuple[object, ...]) -> None:
    sampling = _sampling(logit_bias=biases)
    assert (sampling.logit_bias, sampling.text_bias) == ((), pairs)


@pytest.mark.parametrize("stop", ["", [""], ["", ""], [], None])
def test_an_empty_stop_string_stops_nothing(stop: object) -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], "stop": stop}
    assert ChatCompletionBody.model_validate(fields).turn().request.stop == ()


@pytest.mark.parametrize("biases", [{"5": True}, {"-1": 1}, {"99999999999": 1}])
def test_a_bias_that_means_nothing_is_refused(biases: object) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        _sampling(logit_bias=biases)


@pytest.mark.parametrize(("fields", "begun"), [({}, ""), ({"continue_final_message": True}, "Once")])
def test_an_answer_continues_the_last_message_on_request(fields, begun):
    messages = [{"role": "user", "content": "tell"}, {"role": "assistant", "content": "Once"}]
    assert ChatCompletionBody.model_validate({"messages": messages, **fields}).turn().begun == begun


def test_one_of_several_languages_of_a_sound_is_no_hint() -> None:
    body = TranscriptionBody(file="a", languages=("en", "de"), keywords=("Ann", "Bo"), prompt="A talk.")
    wanted = body.wanted(translates=False)
    assert (wanted.language, wanted.context) == ("", "A talk. Names: Ann, Bo.")
    assert TranscriptionBody(file="a", languages=("de",)).wanted(translates=False).language == "de"


def test_the_parts_of_a_question_end_where_another_question_about_the_same_may_begin() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "two"},
        {"type": "video", "video": {}},
        {"type": "text", "text": "Which?"},
    ]
    message = ChatMessage.model_validate({"role": "user", "content": parts}).message()
    note, question = message.content.partition("\n")[2].rpartition("\n")[::2]
    assert message.content == f"onetwo\n{note}\nWhich?"
    assert question == "Which?"
    assert message.part_ends == (3, 7, 7 + len(note) + 1)
    assert ChatMessage.model_validate({"role": "user", "content": "Which?"}).message().part_ends == ()


def test_the_blocks_of_anthropic_s_and_the_pictures_of_ollama_s_messages_are_parts_too() -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "Which?"}]
    (asked,) = AnthropicMessage.model_validate({"role": "user", "content": blocks}).messages(NO_MEDIA)
    assert (asked.content, asked.part_ends) == ("one\n\nWhich?", (5,))
    media = PromptMedia(Senses(sees=True))
    seen = OllamaMessage.model_validate({"role": "user", "content": "Which?", "images": ["iVBORw0KGgo="]}).message(
        media
    )
    assert seen.content[seen.part_ends[0] :] == "Which?"
