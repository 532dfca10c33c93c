"""An engine stays as long as one of its names holds it, and no name harms another."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.request import Request
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import RequestError
from app.protocol.library import PlanDraft
from app.service.pool.background import PrefillAhead
from tests.app.client.scripted_client import PLAN
from tests.app.one_file_service import BASE, HELLO, MADE, OTHER, Service, serving, until

ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model) as service:
        yield service


# How long it stays


async def test_the_end_of_one_names_hold_is_not_the_end_of_the_others(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(MADE, ttl=0)
    made = await service.models.named(MADE)
    await until(lambda: not made.is_loaded)
    assert await service.states() == {BASE: "ready", MADE: "unloaded"}, "a person wants the base"
    await service.ask(MADE, ttl=600)
    assert (await service.call("unload", model=BASE)).json()["state"] == "unloaded"
    assert await service.states() == {BASE: "unloaded", MADE: "ready"}
    await service.ask(MADE, ttl=0)
    await until(lambda: made.engine.worker_pid is None)
    assert await service.states() == {BASE: "unloaded", MADE: "unloaded"}
    await service.ask(BASE)
    assert await service.states() == {BASE: "ready", MADE: "unloaded"}


async def test_each_name_has_a_timer_of_its_own(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model) as service:
        await service.call("keep-alive", model=BASE, keep_alive="-1")
        await service.make(MADE, system="Be short.")
        await service.ask(MADE)
        running = {entry["name"]: entry for entry in (await service.http.get("/api/ps")).json()["models"]}
        assert running[BASE]["expires_at"].startswith("9999")
        assert not running[MADE]["expires_at"].startswith("9999")
        await service.call("keep-alive", model=MADE, keep_alive="0")
        await until(lambda: not service.models.opened[1].is_loaded)
        running = {entry["name"]: entry for entry in (await service.http.get("/api/ps")).json()["models"]}
        assert list(running) == [BASE]


async def test_unloading_one_name_leaves_the_other_its_answer(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(MADE)
    pid = service.pids[BASE]
    made, base = await service.models.named(MADE), await service.models.named(BASE)
    async with made.answer(ENDLESS) as events:
        await anext(events)
        assert (await service.call("unload", model=BASE)).json()["state"] == "unloaded"
        refused = await service.call("unload", model=MADE)
        assert (refused.status_code, "mario is in use" in refused.text) == (400, True)
        for _ in range(5):
            await anext(events)
    assert made.engine.worker_pid == pid
    assert (made.is_loaded, base.is_loaded) == (True, False)
    await service.call("unload", model=MADE)
    await until(lambda: made.engine.worker_pid is None)


async def test_prefilling_ahead_keeps_no_model_loaded(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model, step_ms=100) as service:
        await service.ask(BASE)
        shared = service.models.default.shared
        shared.prefill_ahead = PrefillAhead(shared.engine, quiet_s=0)

        async def prompt_after(text: str) -> str:
            return "what is sure to come " * 150 + text

        shared.prefill_ahead.begin(ENDLESS, prompt_after)
        await until(lambda: shared.engine.n_running == 1)
        assert (await service.call("unload", model=BASE)).json()["state"] == "unloaded"
        await until(lambda: shared.engine.worker_pid is None)
        assert shared.engine.status.state == "unloaded"


async def test_eviction_unloads_all_names_of_a_file_at_once(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model, total_bytes=10) as service:
        await service.make(MADE, system="Be short.")
        await service.ask(BASE)
        await service.ask(MADE)
        await service.ask(OTHER)
        assert await service.states() == {BASE: "unloaded", MADE: "unloaded", OTHER: "ready"}
        await service.ask(MADE)
        assert await service.states() == {BASE: "unloaded", MADE: "ready", OTHER: "unloaded"}


# What goes


@pytest.mark.parametrize("path", ["/api/delete", "/api/localllm/remove"])
async def test_deleting_one_name_leaves_the_other_its_answer(service: Service, path: str) -> None:
    await service.make(MADE, system="Be short.")
    await service.make("luigi", system="Be green.")
    await service.ask(MADE)
    await service.ask("luigi")
    base = service.models.default
    async with base.answer(ENDLESS) as events:
        await anext(events)
        await service.call("unload", model=MADE)
        gone = await service.http.request("DELETE" if path == "/api/delete" else "POST", path, json={"model": MADE})
        assert gone.status_code == 200, gone.text
        for _ in range(5):
            await anext(events)
    listed = [entry["id"] for entry in (await service.http.get("/v1/models")).json()["data"]]
    assert MADE not in listed
    assert await service.states() == {BASE: "ready", "luigi": "ready"}
    assert (await service.http.post("/v1/chat/completions", json={"model": MADE, **HELLO})).status_code == 404


async def test_a_name_at_work_is_not_deleted(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    made = await service.models.named(MADE)
    async with made.answer(ENDLESS) as events:
        await anext(events)
        refused = await service.http.request("DELETE", "/api/delete", json={"model": MADE})
        assert (refused.status_code, "is busy" in refused.text) == (400, True)
        await anext(events)


async def test_a_file_without_its_first_name_is_loaded_by_another(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model) as service:
        await service.make("luigi", **{"from": OTHER})
        await service.ask(OTHER)
        await service.ask("luigi")
        luigi = await service.models.named("luigi")
        assert luigi.engine.model_path.name == "other.gguf"
        await service.http.request("DELETE", "/api/delete", json={"model": OTHER})
        await service.call("unload", model="luigi")
        await service.ask("luigi")
        assert luigi.engine.model_path.name == "luigi.gguf"


async def test_a_name_removed_by_another_program_is_unknown_though_its_file_is_loaded(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    made = await service.models.named(MADE)
    made.ref.path.unlink()
    with pytest.raises(UnknownModelError):
        await service.models.named(MADE)
    assert list(await service.states()) == [BASE]


async def test_a_loaded_name_without_file_is_not_listed_and_the_others_are(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(BASE)
    await service.ask(MADE)
    (await service.models.named(MADE)).ref.path.unlink()
    running = await service.http.get("/api/ps")
    assert [entry["name"] for entry in running.json()["models"]] == [BASE]
    await service.ask(BASE)


async def test_a_name_that_now_belongs_to_another_file_is_read_again(service: Service, tiny_model: Path) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(MADE)
    await service.call("unload", model=MADE)
    made = await service.models.named(MADE)
    fresh = made.ref.path.with_suffix(".new")
    shutil.copy(tiny_model, fresh)
    recipe = made.ref.path.with_suffix(".recipe.json")
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"system": "Be long."}))
    fresh.replace(made.ref.path)
    await service.ask(MADE)
    again = await service.models.named(MADE)
    assert again.file.recipe.system == "Be long."
    assert again.engine is not made.engine
    assert service.models.default.engine is made.engine


async def test_the_model_of_the_service_is_kept_though_another_name_is_used(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(MADE)
    with pytest.raises(RequestError, match="started with"):
        await service.models.release(service.models.default.ref)


# Listing


async def test_an_engine_is_listed_under_each_name_and_counted_once(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(BASE)
    await service.ask(MADE)
    base, made = (await service.http.get("/api/localllm/status")).json()["models"]
    assert (base["shares_with"], made["shares_with"]) == ([MADE], [BASE])
    assert base["worker_pid"] == made["worker_pid"]
    assert base["counters"]["n_finished"] == made["counters"]["n_finished"] == 2
    metrics = (await service.http.get("/metrics")).text
    assert 'localllm_answers_total{model="base"} 2' in metrics
    assert 'model="mario"' not in metrics, "a sum over models would count it twice"
    running = (await service.http.get("/api/ps")).json()["models"]
    assert [entry["name"] for entry in running] == [MADE, BASE], "the one that was used last stays longest"
    slots = [(await service.http.get("/slots", params={"model": name})).json() for name in (BASE, MADE)]
    assert slots[0] == slots[1]
    await service.call("unload", model=MADE)
    base, made = (await service.http.get("/api/localllm/status")).json()["models"]
    assert (made["state"], made["worker_pid"], made["n_bytes"], made["counters"]) == ("unloaded", None, 0, None)
    assert (base["state"], base["shares_with"]) == ("ready", [])
    states = {entry["id"]: entry for entry in (await service.http.get("/api/v0/models")).json()["data"]}
    assert (states[BASE]["state"], states[MADE]["state"]) == ("loaded", "not-loaded")
    tags = {entry["name"] for entry in (await service.http.get("/api/tags")).json()["models"]}
    assert {BASE, MADE, OTHER} <= tags


# Its draft


async def test_a_copy_is_wanted_where_a_plan_says_that_it_pays(service: Service) -> None:
    shared, wanted = service.models.default.shared, list[tuple[Path, str]]()
    shared._on_copy_wanted = lambda path, file_type: wanted.append((path, file_type))
    await service.ask(BASE)
    engine = shared.engine

    def loaded(gain: float, *, uses_copy: bool) -> None:
        draft = PlanDraft(
            what="a copy",
            bytes=1,
            layers=0,
            draft_tokens=1,
            acceptance=0.8,
            decode_tps=1.0,
            gain=gain,
            least_acceptance=None,
            file_type="Q2_K",
        )
        engine.config = replace(engine.config, uses_copy=uses_copy)
        engine.status = replace(engine.status, state="ready", plan=replace(PLAN, drafts=(draft,)))
        shared.on_idle()

    loaded(1.2, uses_copy=False)
    loaded(0.9, uses_copy=True)
    assert wanted == []
    loaded(1.2, uses_copy=True)
    assert wanted == [(engine.model_path, "Q2_K")]
