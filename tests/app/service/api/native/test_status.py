from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.client.service_client import ServiceClient
from app.engine.loop.counters import Counters, Histogram
from app.engine.messages import EngineMetrics
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message
from app.protocol.errors import RequestError
from app.protocol.status import MeteredKey, Occupancy
from app.service.api.native.status import prometheus_text
from app.settings.private_files import conversation_name
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.running import RunningService


async def test_the_client_reads_the_status(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        status = await client.status()
    model = status.model(status.default_model)
    assert model is not None
    assert (model.id, model.state, model.progress, model.n_ctx) == ("tiny", "ready", 1.0, 4096)


async def test_the_status_reports_the_engines_counters(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        for _ in range(2):
            options = GenerationOptions(temperature=0.0, max_tokens=8)
            events = [event async for event in client.chat([Message("user", "count me in")], "tiny", options)]
        status = await client.status()
    model = status.model("tiny")
    newest = status.answers[0]
    assert (newest.model, newest.n_output_tokens) == ("tiny", events[-1].n_output_tokens)
    assert newest.n_prompt_tokens > 0
    assert newest.first_token_s > 0
    assert newest.at_s > 1.7e9
    assert model is not None
    assert model.counters is not None
    assert model.occupancy is not None
    counters, completed = model.counters, events[-1]
    assert isinstance(completed, Completed)
    assert counters.n_finished >= 2
    assert counters.first_token_s.n_samples >= 2
    assert counters.inter_token_s.p50 is not None
    assert 0.0 < counters.cached_share < 1.0
    assert counters.prefill_tokens_per_s > 0
    assert (model.occupancy.n_running, model.occupancy.n_waiting) == (0, 0)
    assert completed.tokens_per_pass >= 1.0


async def test_a_path_is_loaded_once_and_answers_under_its_id(
    service: RunningService, tiny_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    shutil.copy(tiny_model, other)
    async with ServiceClient(service.url) as client:
        assert await client.load(str(other)) == "other"
        assert await client.load(str(other)) == "other"
        assert await client.count_tokens("four", "other") == 4
        assert [model.id for model in (await client.status()).models].count("other") == 1


async def test_a_file_of_the_same_name_gets_an_id_of_its_own(
    service: RunningService, tiny_model: Path, tmp_path: Path
) -> None:
    shutil.copy(tiny_model, tmp_path / "tiny.gguf")
    async with ServiceClient(service.url) as client:
        assert await client.load(str(tmp_path / "tiny.gguf")) == "tiny-2"


async def test_a_broken_file_is_refused_before_any_worker_sees_it(service: RunningService, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    async with ServiceClient(service.url) as client:
        with pytest.raises(ModelFileError):
            await client.load(str(broken))
        assert (await client.status()).model("broken") is None


async def test_a_missing_file_is_named_with_its_path_to_the_one_who_named_it(
    service: RunningService, tmp_path: Path
) -> None:
    async with ServiceClient(service.url) as client:
        with pytest.raises(ModelFileError) as raised:
            await client.load(str(tmp_path / "gone.gguf"))
    assert str(tmp_path / "gone.gguf") in raised.value.cause


async def test_a_text_is_continued_without_a_template(service: RunningService) -> None:
    options = GenerationOptions(samplers={"dry_multiplier": 0.5, "repeat_last_n": 4}, max_tokens=8)
    async with ServiceClient(service.url) as client:
        *deltas, completed = [event async for event in client.complete("Once upon", "tiny", options)]
    assert all(isinstance(delta, AnswerDelta) and delta.text for delta in deltas)
    assert isinstance(completed, Completed)
    assert completed.n_output_tokens == 8


async def test_a_schema_is_checked_before_a_question_is_asked(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        await client.check_schema({"type": "object", "properties": {"name": {"type": "string"}}})
        with pytest.raises(RequestError, match="type is 'thing'"):
            await client.check_schema({"type": "thing"})


async def test_the_prefixes_of_a_conversation_go_from_the_cache_and_the_disk(
    service: RunningService, environment: Mapping[str, str]
) -> None:
    folder = Path(environment["LOCALLLM_CACHE_DIR"]) / "prefix" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"0-{conversation_name(key)}" for key in ("hers", "his")]
    for path in files:
        path.touch()
    question = [Message("user", "what nobody else asks " * 20)]

    async def n_cached(client: ServiceClient, key: str | None) -> int:
        options = GenerationOptions(max_tokens=1, prompt_cache_key=key)
        completed = [event async for event in client.chat(question, "tiny", options)][-1]
        assert isinstance(completed, Completed)
        return completed.n_cached_tokens

    async with ServiceClient(service.url) as client:
        await n_cached(client, "hers")
        assert await n_cached(client, "hers") > 100
        await client.forget_prefixes(["hers"])
        assert await n_cached(client, None) < 100
    assert [path.exists() for path in files] == [False, True]


LINE = re.compile(r'[a-z_:]+(_bucket|_sum|_count)?\{model="[^"]*"(,le="[^"]+")?\} [0-9.e+-]+')


def test_every_metric_has_our_name_and_llama_servers() -> None:
    counters = Counters(n_prompt_tokens=10, n_cached_tokens=4)
    lines = prometheus_text({"m": EngineMetrics("", counters, Occupancy(1, 2, 3, 4))}).splitlines()
    assert 'localllm_prompt_tokens_computed_total{model="m"} 6' in lines
    assert 'llamacpp:prompt_tokens_total{model="m"} 6' in lines
    assert "# TYPE llamacpp:requests_processing gauge" in lines


def test_histograms_are_cumulated_and_end_with_a_bucket_for_all() -> None:
    waits = Histogram()
    for seconds in (0.5, 0.5, 2.0, 1e9):
        waits.record(seconds)
    seen = EngineMetrics("", Counters(first_token_s=waits), Occupancy(0, 0, 0, 0))
    lines = [
        line for line in prometheus_text({"m": seen}).splitlines() if line.startswith("localllm_first_token_seconds")
    ]
    counts = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert counts == [2, 3, 4]
    assert 'localllm_first_token_seconds_count{model="m"} 4' in lines


def test_a_name_cannot_break_out_of_its_label() -> None:
    seen = EngineMetrics("", Counters(), Occupancy(0, 0, 0, 0))
    assert '{model="a\\"b\\\\c"}' in prometheus_text({'a"b\\c': seen})


def test_the_route_serves_prometheus_text(service: RunningService) -> None:
    response = service.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert samples
    assert all(LINE.fullmatch(line) for line in samples)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@asynccontextmanager
async def _key(client: ServiceClient) -> AsyncIterator[MeteredKey]:
    async with aclosing(client.metered_key()) as keys:
        yield await anext(keys)


def _ask(service: RunningService, secret: str, text: str, header: str = "authorization", **more: object) -> int:
    value = f"Bearer {secret}" if header == "authorization" else secret
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, headers={header: value}).status_code


async def test_only_the_requests_with_a_key_are_counted_in_it(service: RunningService) -> None:
    async with ServiceClient(service.url) as client, _key(client) as mine, _key(client) as other:
        assert _ask(service, mine.secret, "a question of mine") == 200
        assert _ask(service, mine.secret, "a question of mine, longer", "x-api-key") == 200
        assert _ask(service, "sk-anything", "a question of somebody") == 200
        [_ async for _ in client.chat([Message("user", "and another")])]
        usage = await client.metered_usage(mine.id)
        assert (await client.metered_usage(other.id)).n_answers == 0
    assert (usage.n_answers, usage.n_failed, usage.n_output_tokens) == (2, 0, 8)
    assert 0 < usage.n_cached_tokens < usage.n_prompt_tokens
    assert usage.first_token_s is not None


async def test_the_first_prompt_is_the_one_with_tools_and_refused_requests_are_counted(service: RunningService) -> None:
    async with ServiceClient(service.url) as client, _key(client) as key:
        assert _ask(service, key.secret, "a title") == 200
        n_title = (await client.metered_usage(key.id)).n_first_prompt_tokens
        assert _ask(service, key.secret, "a task", tools=[TOOL]) == 200
        assert (await client.metered_usage(key.id)).n_first_prompt_tokens > n_title > 0
        assert _ask(service, key.secret, "x" * 9000) == 400
        usage = await client.metered_usage(key.id)
    assert (usage.n_answers, usage.n_failed) == (2, 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"model": "tiny", "max_output_tokens": 16, "input": "hi"}),
        ("/api/chat", {"model": "tiny", "stream": False, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"model": "tiny", "max_tokens": 4, "prompt": "hi"}),
    ],
)
async def test_every_dialect_is_counted(service: RunningService, path: str, body: dict[str, object]) -> None:
    async with ServiceClient(service.url) as client, _key(client) as key:
        async with ServiceClient(service.url, key.secret) as agent:
            await agent.call("POST", path, body)
        assert (await client.metered_usage(key.id)).n_answers == 1


@pytest.mark.slow
async def test_a_key_asks_models_and_does_nothing_else_and_ends_with_its_stream(
    start_service: Callable[..., RunningService],
) -> None:
    service = start_service(api_key="sesame")
    async with ServiceClient(service.url, "sesame") as client:
        async with _key(client) as key:
            assert _ask(service, key.secret, "hello") == 200
            assert _ask(service, "llm-run-of-somebody", "hello") == 401
            async with ServiceClient(service.url, key.secret) as agent:
                with pytest.raises(RequestError, match="scope manage"):
                    await agent.load("tiny")
                with pytest.raises(RequestError, match="scope manage"):
                    await anext(agent.metered_key())
            assert (await client.metered_usage(key.id)).n_answers == 1
        await asyncio.to_thread(service.wait_until, lambda _: _ask(service, key.secret, "hello") == 401)
        with pytest.raises(RequestError, match="no such key"):
            await client.metered_usage(key.id)
