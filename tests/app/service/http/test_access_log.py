from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.engine.chat_template.template_process import TemplateProcess
from app.engine.request import Timings, Usage
from app.library.local.model_files import ModelRef
from app.protocol.errors import RequestError
from app.protocol.plan import PlanChange, PlanRemedy
from app.protocol.status import MeteredUsage
from app.service.application import create_app
from app.service.http import access_log
from app.service.http.access_log import WARNING_HEADER, MeteredKeys, UsageMeter
from app.service.http.guard import GuardPolicy
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.service.shutdown_policy import ShutdownPolicy
from app.settings.settings import Settings
from tests.app.client.scripted_client import PLAN as GUIDE_PLAN
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker

PLAN = replace(
    GUIDE_PLAN,
    verdict="partial",
    warnings=("20 of 33 layers fit: 9 tok/s instead of 40.", "Another."),
    remedies=tuple(PlanRemedy(what, None, "", PlanChange()) for what in ("Q3_K_M", "a shorter context")),
)
SAID = ["20 of 33 layers fit: 9 tok/s instead of 40.", "What would help: Q3_K_M."]
MESSAGES = [{"role": "user", "content": "a secret"}]
ASKED = {"messages": MESSAGES, "max_tokens": 4}
WHOLE = {
    "/v1/chat/completions": ASKED,
    "/v1/completions": {"prompt": "a secret", "max_tokens": 4},
    "/v1/messages": ASKED,
    "/v1/responses": {"input": "a secret", "max_output_tokens": 4},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 4}},
    "/api/generate": {"prompt": "a secret", "stream": False, "options": {"num_predict": 4}},
    "/completion": {"prompt": "a secret", "n_predict": 4},
}


class Service:
    """A service in this process, and the lines of its log."""

    def __init__(self, models: ModelManager, http: httpx.AsyncClient, lines: list[str]) -> None:
        self.models, self.http, self.lines = models, http, lines


@asynccontextmanager
async def _service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    path = Path(shutil.copy(tiny_model, tmp_path / "tiny.gguf"))
    settings = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path)
    memory = FakeMemory(10, {"tiny": 1})
    models = ModelManager(settings, thread_worker(), TemplateProcess(), memory)
    models.add(ModelRef("tiny", path), read_model_file(path)).load()
    lines: list[str] = []
    transport = httpx.ASGITransport(
        app=create_app(models, JobManager(models.settings), ShutdownPolicy(is_owned=False), GuardPolicy(), lines.append)
    )
    try:
        async with asyncio.timeout(60), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield Service(models, http, lines)
    finally:
        await models.close()


@pytest.mark.parametrize("path", WHOLE)
async def test_a_line_has_the_route_the_model_and_its_tokens_and_never_a_prompt(
    tmp_path: Path, tiny_model: Path, path: str
) -> None:
    async with _service(tmp_path, tiny_model) as service:
        answer = await service.http.post(f"{path}?key=hidden", json=WHOLE[path])
        assert answer.status_code == 200, answer.text
    (line,) = service.lines
    assert re.fullmatch(
        rf"\S+Z POST {re.escape(path)} 200 \d+\.\dms model=tiny prompt_tokens=\d+ output_tokens=4", line
    )
    assert "secret" not in line
    assert "hidden" not in line


async def test_refused_requests_are_logged_and_no_path_breaks_a_line(tmp_path: Path, tiny_model: Path) -> None:
    async with _service(tmp_path, tiny_model) as service:
        await service.http.get("/v1/models", headers={"host": "evil.example"})
        await service.http.get("/no%0A2026 GET /forged 200")
        await service.http.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
    refused, strange, unknown = service.lines
    assert "GET /v1/models 403 " in refused
    assert " 404 " in strange
    assert len(strange.splitlines()) == 1
    assert "POST /v1/completions 404 " in unknown


@pytest.mark.parametrize("path", WHOLE)
async def test_the_planners_warning_is_a_header_and_a_field(tmp_path: Path, tiny_model: Path, path: str) -> None:
    async with _service(tmp_path, tiny_model) as service:
        assert WARNING_HEADER not in (await service.http.post(path, json=WHOLE[path])).headers
        engine = service.models.default.engine
        engine.status = replace(engine.status, plan=PLAN)
        warned = await service.http.post(path, json=WHOLE[path])
    assert warned.headers[WARNING_HEADER] == " ".join(SAID)
    assert warned.json()["warnings"] == SAID


@pytest.mark.parametrize("path", WHOLE)
async def test_ignored_fields_are_in_a_header_a_field_and_the_lines_of_the_log(
    tmp_path: Path, tiny_model: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(access_log, "log_event", lambda _, text: events.append(text))
    body = {**WHOLE[path], "frob\nnicate": 1, "user": "me"}
    async with _service(tmp_path, tiny_model) as service:
        answers = [await service.http.post(path, json=body) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers[WARNING_HEADER] == "localllm ignores frob nicate."
        assert answer.json()["warnings"] == ["localllm ignores frob nicate."]
    assert all(line.endswith("ignored='frob nicate'") for line in service.lines)
    assert events == [f"{path} ignores frob nicate"]


SCHEMA = {"type": "object", "properties": {"at": {"type": "string", "format": "hostname"}}}
STRICT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
# Path → the same schema in its words. The last are continued as text, without a chat template.
WITH_SCHEMA = {
    "/v1/chat/completions": {"response_format": STRICT},
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "/v1/responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    "/api/chat": {"format": SCHEMA},
    "/api/generate": {"format": SCHEMA},
    "/v1/completions": {"response_format": STRICT},
    "/completion": {"json_schema": SCHEMA},
    "/api/generate?raw": {"format": SCHEMA, "raw": True},
}


@pytest.mark.parametrize("path", WITH_SCHEMA)
async def test_each_answer_names_the_format_of_its_schema_that_is_not_enforced_once(
    tmp_path: Path, tiny_model: Path, path: str
) -> None:
    route = path.split("?")[0]
    async with _service(tmp_path, tiny_model) as service:
        answer = await service.http.post(route, json=WHOLE[route] | WITH_SCHEMA[path])
        assert answer.status_code == 200, answer.text
        stream = (await service.http.post(route, json=WHOLE[route] | WITH_SCHEMA[path] | {"stream": True})).text
    assert answer.json()["warnings"] == ["The schema's format 'hostname' is not enforced."]
    assert "format 'hostname' is not enforced" in stream


async def test_of_several_prompts_with_one_schema_the_notice_comes_once(tmp_path: Path, tiny_model: Path) -> None:
    body = {"prompt": ["one", "two"], "max_tokens": 4, **WITH_SCHEMA["/v1/completions"]}
    async with _service(tmp_path, tiny_model) as service:
        answer = await service.http.post("/v1/completions", json=body)
    assert answer.json()["warnings"] == ["The schema's format 'hostname' is not enforced."]


async def test_of_many_ignored_fields_some_are_named_and_not_for_ever_logged(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(access_log, "log_event", lambda _, text: events.append(text))
    monkeypatch.setattr(access_log, "_MOST_LOGGED", 3)
    many = {f"field{number}": "x" for number in range(2000)}
    async with _service(tmp_path, tiny_model) as service:
        answer = await service.http.post("/v1/completions", json=WHOLE["/v1/completions"] | many | {"y" * 999: 1})
        for number in range(5):
            await service.http.post("/v1/completions", json=WHOLE["/v1/completions"] | {f"other{number}": 1})
    (warning,) = answer.json()["warnings"]
    assert warning == f"localllm ignores {', '.join(f'field{number}' for number in range(8))} and 56 more."
    assert len(events) == 3


async def test_a_refused_request_says_what_it_would_have_ignored(tmp_path: Path, tiny_model: Path) -> None:
    async with _service(tmp_path, tiny_model) as service:
        answer = await service.http.post("/v1/completions", json={"model": "nobody", "prompt": "x", "frobnicate": 1})
    assert answer.status_code == 404
    assert answer.headers[WARNING_HEADER] == "localllm ignores frobnicate."


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_a_stream_with_the_whole_message_has_the_warning_in_it(
    tmp_path: Path, tiny_model: Path, path: str
) -> None:
    async with _service(tmp_path, tiny_model) as service:
        await service.models.default.engine.ready()
        body = {**WHOLE[path], "stream": True}
        silent = (await service.http.post(path, json=body)).text
        engine = service.models.default.engine
        engine.status = replace(engine.status, plan=PLAN)
        text = (await service.http.post(path, json=body)).text
    assert "warnings" not in silent
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    messages = [whole for event in events if (whole := event.get("message") or event.get("response"))]
    assert [whole["warnings"] for whole in messages] == [SAID] * len(messages)
    assert messages


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
async def test_the_end_of_a_stream_has_the_warning(tmp_path: Path, tiny_model: Path, path: str) -> None:
    async with _service(tmp_path, tiny_model) as service:
        await service.models.default.engine.ready()
        engine = service.models.default.engine
        engine.status = replace(engine.status, plan=PLAN)
        text = (await service.http.post(path, json={**WHOLE[path], "stream": True})).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line and not line.endswith("[DONE]")]
    assert [json.loads(line).get("warnings") for line in lines][-1] == SAID


def test_a_key_is_known_by_its_secret_and_its_id_until_it_is_closed() -> None:
    keys = MeteredKeys()
    with keys.open() as key, keys.open() as other:
        assert key.id != other.id
        assert keys.of_secret(key.secret) is keys.of_id(key.id)
        assert keys.of_secret(other.secret) is not keys.of_secret(key.secret)
        assert keys.of_secret(key.secret + "x") is keys.of_secret("") is keys.of_id("") is None
        assert key.secret not in repr(vars(keys)), "a secret is kept as its hash"
    assert keys.of_secret(key.secret) is keys.of_id(key.id) is None


def test_there_is_a_limit_of_open_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_MOST_OPEN", 1)
    keys = MeteredKeys()
    with keys.open(), pytest.raises(RequestError, match="1 temporary keys"), keys.open():
        pass
    with keys.open():
        pass


def test_answers_are_summed_and_the_first_prompt_is_that_of_the_first_request_with_tools() -> None:
    meter = UsageMeter()
    assert meter.usage == MeteredUsage()
    answers = [(50, 0, False, 0.5), (1000, 600, True, 3.0), (1100, 1000, True, 0.25)]
    for n_prompt, n_cached, has_tools, wait_s in answers:
        usage = Usage(n_prompt_tokens=n_prompt, n_cached_tokens=n_cached, n_output_tokens=11)
        meter.add_answer(usage, Timings(queue_s=0.05, prefill_s=wait_s, decode_s=1.0), has_tools=has_tools)
    meter.add_failure()
    usage = meter.usage
    assert (usage.n_answers, usage.n_failed) == (3, 1)
    assert (usage.n_prompt_tokens, usage.n_cached_tokens, usage.n_output_tokens) == (2150, 1600, 33)
    assert (usage.n_first_prompt_tokens, usage.n_first_cached_tokens) == (1000, 600)
    assert usage.first_token_s == pytest.approx(0.55)
    assert usage.cached_share == pytest.approx(1600 / 2150)
    assert usage.later_cached_share == pytest.approx(1000 / 1150)
    assert usage.prefill_tokens_per_s == pytest.approx(550 / 3.75)
    assert usage.decode_tokens_per_s == pytest.approx(10.0)


def test_rates_of_nothing_are_zero() -> None:
    usage = MeteredUsage()
    assert (usage.later_cached_share, usage.n_answers) == (0.0, 0)
    assert (usage.cached_share, usage.prefill_tokens_per_s, usage.decode_tokens_per_s) == (0.0, 0.0, 0.0)
