"""A request that needs more than the context loads the model again with a longer one, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.messages import EngineConfig
from app.engine.request import Request
from app.service.http.access_log import WARNING_HEADER
from app.service.pool.context_growth import context_sizes, lengths_to_try, room_for_answer
from app.service.pool.memory import ModelDemand
from offload.devices.machine import Machine
from tests.app.conftest import CHAT_TEMPLATE
from tests.app.one_file_service import BASE, SIZES, Service, serving, until
from tests.app.service.pool.memory_fake import FakeMemory
from tests.quantizer.gguf_files import tiny_llama

USUAL, TRAINED = 4096, 65536  # of the fake engine without --ctx; a token of its is a byte
LONG = "x" * 9000


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on 65,536 tokens."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(CHAT_TEMPLATE)
        writer.kv_data[0]["llama.context_length"].value = TRAINED

    return tiny_llama(tmp_path_factory.mktemp("long") / "long.gguf", edit)


class Started:
    """Starts services, and is what their tests share."""

    def __init__(self, folder: Path, model: Path, stack: AsyncExitStack) -> None:
        self._folder, self._model, self._stack = folder, model, stack

    async def service(self, **how: Any) -> Service:
        service = await self._stack.enter_async_context(serving(self._folder, self._model, **how))
        await service.models.default.ready()
        return service


@pytest.fixture
async def start(tmp_path: Path, long_model: Path) -> AsyncIterator[Started]:
    async with AsyncExitStack() as stack:
        yield Started(tmp_path, long_model, stack)


def _n_ctx(service: Service) -> int:
    facts = service.models.default.engine.status.facts
    return facts.n_ctx if facts else 0


def _asking(text: str, **more: Any) -> dict[str, Any]:
    return {"model": BASE, "max_tokens": 3, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", _asking(LONG)),
        ("/v1/messages", _asking(LONG)),
        ("/v1/completions", {"model": BASE, "prompt": LONG, "max_tokens": 3}),
        ("/v1/responses", {"model": BASE, "input": LONG, "max_output_tokens": 16}),
        ("/api/chat", {"messages": _asking(LONG)["messages"], "stream": False, "options": {"num_predict": 3}}),
        ("/api/generate", {"model": BASE, "prompt": LONG, "stream": False, "options": {"num_predict": 3}}),
        ("/completion", {"prompt": LONG, "n_predict": 3}),
    ],
)
async def test_a_prompt_that_is_too_long_is_answered_by_a_model_loaded_again_and_the_client_learns_of_it(
    start: Started, path: str, body: dict[str, Any]
) -> None:
    service = await start.service()
    (before,) = service.pids.values()
    answer = await service.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (told,) = answer.json()["warnings"]
    assert f"16,384 tokens of context instead of {USUAL:,}" in told
    assert "--ctx 16384" in told
    assert answer.headers[WARNING_HEADER] == told
    assert _n_ctx(service) == 16384
    (after,) = service.pids.values()
    assert after != before
    again = await service.http.post(path, json=body)
    assert (again.status_code, "warnings" in again.json()) == (200, False)
    assert [*service.pids.values()] == [after], "it is loaded once"


async def test_a_streamed_answer_reports_it_with_its_end(start: Started) -> None:
    service = await start.service()
    answer = await service.http.post("/v1/chat/completions", json=_asking(LONG, stream=True))
    *_, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "16,384" in last["warnings"][0]
    assert "16,384" in answer.headers[WARNING_HEADER]


@pytest.mark.slow
async def test_a_prompt_that_fits_but_leaves_no_room_for_an_answer_gets_it(start: Started) -> None:
    service = await start.service()
    body = _asking("x" * (USUAL - 200), max_tokens=1500, ignore_eos=True)
    answer = (await service.http.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 1500, "it would have been cut after some 170"
    assert _n_ctx(service) == 8192


async def test_it_waits_for_the_answers_that_run_and_they_end_whole(start: Started) -> None:
    service = await start.service(step_ms=5)
    engine = service.models.default.engine
    running = asyncio.create_task(service.ask(BASE, max_tokens=60, ignore_eos=True))
    await until(lambda: engine.n_running == 1)
    growing = asyncio.create_task(service.ask(BASE, **_asking(LONG)))
    answer = await running
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "warnings" in await growing


@pytest.mark.slow
async def test_requests_of_several_lengths_at_once_all_get_their_answer(start: Started) -> None:
    service = await start.service()
    texts = [LONG, "hello", LONG * 3, LONG * 2]
    answers = await asyncio.gather(*(service.ask(BASE, **_asking(text)) for text in texts))
    assert all(answer["usage"]["completion_tokens"] for answer in answers)
    assert _n_ctx(service) == 32768


async def test_a_context_that_the_user_chose_stays_and_the_refusal_names_the_one_that_helps(start: Started) -> None:
    service = await start.service(ctx=USUAL)
    answer = await service.http.post("/v1/chat/completions", json=_asking(LONG))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "--ctx 16384" in answer.json()["error"]["message"]
    assert _n_ctx(service) == USUAL


async def _can_grow(service: Service) -> bool:
    (model,) = (await service.http.get("/api/localllm/status")).json()["models"]
    return bool(model["can_grow"])


async def test_a_client_learns_whether_the_context_can_grow(start: Started) -> None:
    """One that knows to make a prompt shorter lets the context grow first."""
    service = await start.service(memory=FakeMemory(20, SIZES, max_n_ctx=8192))
    assert await _can_grow(service)
    await service.http.post("/v1/chat/completions", json=_asking(LONG))  # for which there is no memory
    assert not await _can_grow(service)


async def test_a_context_that_the_user_chose_cannot_grow(start: Started) -> None:
    assert not await _can_grow(await start.service(ctx=USUAL))


async def test_a_prompt_longer_than_the_model_was_trained_on_is_refused(start: Started) -> None:
    service = await start.service()
    (before,) = service.pids.values()
    answer = await service.http.post("/v1/messages", json=_asking("x" * TRAINED))
    assert answer.status_code == 400
    assert "trained on 65,536 tokens" in answer.json()["error"]["message"]
    assert [*service.pids.values()] == [before], "nothing is loaded for it"


@pytest.mark.slow
async def test_without_the_memory_a_long_prompt_is_refused_and_a_short_one_is_answered(start: Started) -> None:
    service = await start.service(memory=FakeMemory(20, SIZES, max_n_ctx=8192))
    (before,) = service.pids.values()
    answer = await service.http.post("/v1/chat/completions", json=_asking(LONG))
    assert answer.status_code == 400
    assert "does not fit into the free memory" in answer.json()["error"]["message"]
    answered = await service.ask(BASE, **_asking("x" * (USUAL - 200), max_tokens=None, ignore_eos=True))
    assert answered["choices"][0]["finish_reason"] == "length", "with the room that there is"
    assert [*service.pids.values()] == [before]


async def test_where_only_a_tight_context_fits_it_is_taken(start: Started) -> None:
    service = await start.service(memory=FakeMemory(20, SIZES, max_n_ctx=10 * 1024))
    await service.ask(BASE, **_asking(LONG))
    assert _n_ctx(service) == 9 * 1024


class _Optimist(FakeMemory):
    """Memory that turns out to be too small when a longer context is loaded."""

    def demand(self, path: Path, config: EngineConfig) -> ModelDemand:
        demand = super().demand(path, config)

        def at_first(machine: Machine) -> float:
            worth = demand(machine)
            if config.n_ctx > USUAL:
                self.max_n_ctx = USUAL
            return worth

        return at_first


async def test_a_load_that_fails_is_undone_and_not_tried_again(start: Started) -> None:
    service = await start.service(memory=_Optimist(20, SIZES))
    for why in ("16,384 tokens could not be loaded. base is too large", "does not fit into the free memory"):
        answer = await service.http.post("/v1/chat/completions", json=_asking(LONG))
        assert answer.status_code == 400, answer.text
        assert why in answer.json()["error"]["message"]
    assert (await service.ask(BASE))["usage"]["completion_tokens"] == 3
    assert _n_ctx(service) == USUAL


@pytest.mark.slow
async def test_a_model_whose_memory_is_gone_loads_with_the_usual_context_again(start: Started) -> None:
    memory = FakeMemory(20, SIZES)
    service = await start.service(memory=memory)
    await service.ask(BASE, **_asking(LONG))
    engine = service.models.default.engine
    assert engine.unload()
    memory.max_n_ctx = USUAL
    await service.ask(BASE)
    assert _n_ctx(service) == USUAL
    assert engine.unload()
    memory.max_n_ctx = TRAINED
    await service.ask(BASE, **_asking(LONG))
    assert _n_ctx(service) == 16384


async def test_a_client_that_goes_away_leaves_the_longer_context(start: Started) -> None:
    service = await start.service()
    engine = service.models.default.engine
    growing = asyncio.create_task(service.ask(BASE, **_asking(LONG)))
    await until(lambda: engine.config.n_ctx == 16384)
    growing.cancel()
    await asyncio.wait({growing})
    assert (await engine.ready()).n_ctx == 16384


@given(st.integers(1, 200_000), st.integers(1, 4096), st.integers(1, 1 << 20))
def test_each_context_holds_the_prompt_and_a_token_and_is_no_longer_than_trained(
    n_prompt: int, n_answer: int, n_ctx_train: int
) -> None:
    sizes = context_sizes(n_prompt, n_answer, n_ctx_train)
    assert all(n_prompt < n_ctx <= n_ctx_train for n_ctx in sizes)
    assert bool(sizes) == (n_prompt < n_ctx_train)
    assert [*sizes] == sorted(sizes, reverse=True)


def test_who_sends_token_ids_has_counted_them() -> None:
    assert room_for_answer(Request(request_id="", prompt=(1, 2))) == 1
    assert room_for_answer(Request(request_id="", prompt="text")) == 2048
    assert room_for_answer(Request(request_id="", prompt="text", max_tokens=7)) == 7
    assert room_for_answer(Request(request_id="", prompt="text", max_tokens=32000)) == 2048


async def test_a_service_that_ends_while_a_context_grows_starts_no_other_worker(
    tmp_path: Path, long_model: Path
) -> None:
    async with serving(tmp_path, long_model, load_ms=400) as service:
        engine = service.models.default.engine
        await engine.ready()
        growing = asyncio.create_task(service.http.post("/v1/chat/completions", json=_asking(LONG)))
        await until(lambda: engine.config.n_ctx == 16384)
    refused = await growing
    assert refused.status_code in (400, 500)
    assert engine.worker_pid is None
    assert not engine.holds_memory


async def test_a_context_is_made_longer_before_a_prompt_needs_it(start: Started) -> None:
    service = await start.service()
    told = await service.call("context", model=BASE, n_ctx=20_000)
    assert told.json() == {"n_ctx": 20_000, "n_ctx_train": TRAINED, "reason": ""}
    (before,) = service.pids.values()
    again = await service.call("context", model=BASE, n_ctx=16_000)
    assert again.json() == {"n_ctx": 20_000, "n_ctx_train": TRAINED, "reason": ""}
    assert [*service.pids.values()] == [before], "it is long enough"


async def test_a_context_is_as_long_as_training_allows_and_the_reason_is_told(start: Started) -> None:
    service = await start.service()
    told = await service.call("context", n_ctx=TRAINED * 2)
    assert told.json() == {"n_ctx": TRAINED, "n_ctx_train": TRAINED, "reason": "it was trained on 65,536"}
    assert (await service.call("context", n_ctx=TRAINED * 2)).json() == told.json()


async def test_a_context_is_as_long_as_memory_allows_and_the_reason_is_told(start: Started) -> None:
    service = await start.service(memory=FakeMemory(20, SIZES, max_n_ctx=30_000))
    told = (await service.call("context", n_ctx=32_768)).json()
    assert told == {"n_ctx": 28_672, "n_ctx_train": TRAINED, "reason": "there is no free memory for more"}


async def test_a_context_that_the_user_chose_is_not_made_longer(start: Started) -> None:
    service = await start.service(ctx=USUAL)
    told = (await service.call("context", n_ctx=8192)).json()
    assert (told["n_ctx"], told["reason"]) == (USUAL, f"it was loaded with --ctx {USUAL}")


async def test_a_longer_context_that_does_not_load_is_undone_and_the_reason_is_told(start: Started) -> None:
    service = await start.service(memory=_Optimist(20, SIZES))
    told = (await service.call("context", n_ctx=16_384)).json()
    assert told["n_ctx"] == USUAL
    assert "16,384 tokens could not be loaded" in told["reason"]


@given(st.integers(64, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_each_length_to_try_is_longer_than_the_present_one_and_no_longer_than_wanted_or_trained(
    n_ctx: int, n_now: int, n_ctx_train: int
) -> None:
    lengths = lengths_to_try(n_ctx, n_now, n_ctx_train)
    assert all(n_now < length <= n_ctx and length <= (n_ctx_train or length) for length in lengths)
    assert [*lengths] == sorted(lengths, reverse=True)
    assert bool(lengths) >= (n_now < n_ctx and (not n_ctx_train or n_now < n_ctx_train))
