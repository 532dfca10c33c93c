from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message
from app.protocol.errors import RequestError
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
        model = (await client.status()).model("tiny")
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
