"""The official OpenAI client against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.running import RunningService
from tests.app.service.api import sdk

MESSAGES: list[sdk.openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.slow
def test_it_chats(client: sdk.openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5


def test_it_streams(client: sdk.openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5, temperature=0)
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=5,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None


def test_it_completes(client: sdk.openai.OpenAI) -> None:
    assert client.completions.create(model="tiny", prompt="hello", max_tokens=5).choices[0].text


def test_it_reads_several_answers_and_their_logprobs(client: sdk.openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=5,
        n=2,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    text = client.completions.create(model="tiny", prompt="hello", max_tokens=5, logprobs=2).choices[0]
    assert text.logprobs is not None
    assert text.logprobs.tokens is not None
    assert "".join(text.logprobs.tokens) == text.text


def test_it_lists_models(client: sdk.openai.OpenAI) -> None:
    assert "tiny" in {model.id for model in client.models.list()}


def test_its_own_exceptions_are_raised(client: sdk.openai.OpenAI) -> None:
    with pytest.raises(sdk.openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(sdk.openai.BadRequestError) as overflow:
        client.completions.create(model="tiny", prompt="x" * 5000)
    assert overflow.value.code == "context_length_exceeded"
