"""Names that come to one file share one engine, and each is answered as it was made."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from app.engine.request import Request
from app.library.local.index import MISMATCH_REMEDY, Index
from app.service.models.model_file import NOTHING_ATTACHED, Attachments, read_model_file
from app.service.pool.background import IdleTuning
from app.service.pool.engine_client import EngineClient, EngineStatus
from app.service.pool.engine_pool import EnginePool, IdleLimit, KeepAlive
from app.settings.settings import Settings
from tests.app.one_file_service import BASE, HELLO, MADE, OTHER, SIZES, Service, serving
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

ENDLESS = Request(request_id="endless", prompt="on and on", ignore_eos=True)
JINJA = "{% for message in messages %}{{ message.role }}={{ message.content }} {% endfor %}>"


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model) as service:
        yield service


# One engine


async def test_a_created_name_shares_the_engine_of_its_file(service: Service) -> None:
    await service.ask(BASE)
    await service.make(MADE, system="Be short.", template=JINJA, parameters={"temperature": 0})
    await service.ask(MADE)
    await service.ask(OTHER)
    pids = service.pids
    assert pids[BASE] == pids[MADE] != pids[OTHER]
    assert pids[BASE] is not None
    assert await service.states() == {BASE: "ready", MADE: "ready", OTHER: "ready"}, "two engines are all that fits"


async def test_one_name_finds_the_cache_of_the_other(service: Service) -> None:
    await service.make(MADE, parameters={"temperature": 0})
    question = {"messages": [{"role": "user", "content": "the same long question " * 4}]}
    first = await service.ask(BASE, **question)
    again = await service.ask(MADE, **question)
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"] // 2


async def test_a_recipes_template_is_used_for_its_own_name_only(service: Service) -> None:
    await service.make(MADE, system="Be short.", template=JINJA)
    prompts = {}
    for name in (BASE, MADE):
        prompts[name] = (await service.http.post("/apply-template", json={"model": name, **HELLO})).json()["prompt"]
        await service.ask(name)
    assert prompts[MADE] == "system=Be short. user=hello >"
    assert prompts[BASE].startswith("<user>hello")
    assert service.pids[BASE] == service.pids[MADE]


@pytest.mark.parametrize(("make", "is_shared"), [(os.link, True), (os.symlink, True), (shutil.copy, False)])
async def test_a_file_is_the_same_by_any_link_and_not_by_a_copy(
    service: Service, make: Callable[[Path, Path], object], is_shared: bool
) -> None:
    target = service.models.settings.models_dir / "me" / "link" / "link.gguf"
    target.parent.mkdir()
    make(service.models.default.ref.path, target)
    await service.ask(BASE)
    await service.ask("link")
    assert (service.pids["link"] == service.pids[BASE]) is is_shared


async def test_a_copy_of_ollamas_shares_too(service: Service) -> None:
    assert (await service.http.post("/api/copy", json={"source": BASE, "destination": MADE})).status_code == 200
    await service.ask(BASE)
    await service.ask(MADE)
    assert service.pids[MADE] == service.pids[BASE]


# How it is loaded


async def test_the_usual_context_is_shared_and_a_longer_one_has_its_own_engine(
    tmp_path: Path, tiny_model: Path
) -> None:
    async with serving(tmp_path, tiny_model, ctx=1024, total_bytes=30) as service:
        await service.make(MADE, parameters={"num_ctx": 512})
        await service.make("luigi", parameters={"num_ctx": 4096})
        await service.make("peach", parameters={"num_ctx": 4096})
        for name in (BASE, MADE, "luigi", "peach"):
            await service.ask(name)
        pids = service.pids
        assert pids[BASE] == pids[MADE] != pids["luigi"] == pids["peach"]
        running = {entry["name"]: entry for entry in (await service.http.get("/api/ps")).json()["models"]}
        assert [running[name]["context_length"] for name in (BASE, MADE, "luigi")] == [1024, 1024, 4096]


@pytest.mark.parametrize("n_ctx", [-1, "4096", 1.5, 1 << 31])
async def test_a_recipe_with_an_invalid_context_is_refused(service: Service, n_ctx: object) -> None:
    body = {"model": MADE, "from": BASE, "stream": False, "parameters": {"num_ctx": n_ctx}}
    answer = await service.http.post("/api/create", json=body)
    assert answer.status_code == 400
    assert "num_ctx" in answer.text


async def test_attachments_that_change_answers_have_their_own_engine(tmp_path: Path, tiny_model: Path) -> None:
    settings = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path)
    pool = EnginePool(settings, thread_worker(), FakeMemory(20, SIZES), IdleTuning(lambda: False))
    file = read_model_file(tiny_model)
    plain, drafting, adapted, steered = (
        pool.engine_for(tiny_model, file, attached, None)
        for attached in (
            NOTHING_ATTACHED,
            Attachments(draft_path="draft.gguf"),
            Attachments(lora=(("lora.gguf", "lora"),)),
            Attachments(control_vectors=(("vector.gguf", 1.0),)),
        )
    )
    assert plain is drafting
    assert len({plain, adapted, steered}) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"draft": ""}, {"finds_head": True}),
        ({"draft": "small"}, {"finds_head": True}),
        ({"draft": "none"}, {"finds_head": False}),
        ({"draft": "copy"}, {"finds_head": True}),
        ({"save_prefixes": True}, {"saves_prefixes": True}),
        ({"save_prefixes": False}, {"saves_prefixes": False}),
    ],
)
async def test_the_head_beside_a_model_is_used_and_prefixes_are_saved_unless_the_settings_forbid_it(
    tmp_path: Path, tiny_model: Path, settings: dict[str, Any], expected: dict[str, bool]
) -> None:
    given = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path, **settings)
    pool = EnginePool(given, thread_worker(), FakeMemory(20, SIZES), IdleTuning(lambda: False))
    shared = pool.engine_for(tiny_model, read_model_file(tiny_model), NOTHING_ATTACHED, None)
    assert {name: getattr(shared.engine.config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("engine", "idle_tune", "n_types"), [("llama", True, 1), ("llama", False, 0), ("fake", True, 0)]
)
async def test_the_types_of_weights_are_measured_once_and_before_any_model(
    tmp_path: Path, engine: str, idle_tune: bool, n_types: int
) -> None:
    commands: list[Sequence[str]] = []
    tuning = IdleTuning(lambda: False)
    tuning.add = commands.append  # type: ignore[method-assign]
    settings = Settings(engine=engine, data_dir=tmp_path, cache_dir=tmp_path, idle_tune=idle_tune, threads=3)
    pool = EnginePool(settings, thread_worker(), FakeMemory(20, SIZES), tuning)
    for n_layers in (1, 2):
        path = tiny_llama(tmp_path / f"{n_layers}.gguf")
        path.write_bytes(path.read_bytes() + bytes(n_layers))
        pool.engine_for(path, read_model_file(path), NOTHING_ATTACHED, None)
    modules = [next(word for word in command if word.startswith("app.engine.tuning")) for command in commands]
    assert modules.count("app.engine.tuning.type_tuner") == n_types
    assert len(commands) == 3 * n_types
    assert all(command[-2:] == ["3", "--idle"] for command in map(list, commands))
    assert not modules or modules[0] == "app.engine.tuning.type_tuner"


async def test_a_model_is_loaded_with_its_projector_and_names_of_one_file_share_it(tmp_path: Path) -> None:
    settings = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path)
    pool = EnginePool(settings, thread_worker(), FakeMemory(20, SIZES), IdleTuning(lambda: False))
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    models = [tiny_llama(folders[0] / "m.gguf"), *(folder / "m.gguf" for folder in folders[1:])]
    projectors = [tiny_projector(folders[0] / "mmproj-m.gguf"), folders[1] / "mmproj-m.gguf"]
    for path, first in ((models[1], models[0]), (models[2], models[0]), (projectors[1], projectors[0])):
        os.link(first, path)
    engines = [pool.engine_for(path, read_model_file(path), NOTHING_ATTACHED, None) for path in models]
    assert engines[0] is engines[1] is not engines[2]
    config, without = engines[0].engine.config, engines[2].engine.config
    assert (config.projector_path, config.has_chosen_projector) == (str(projectors[0]), False)
    assert without.projector_path == ""
    chosen = read_model_file(models[2], str(projectors[0]))
    assert pool.engine_for(models[2], chosen, NOTHING_ATTACHED, None) is engines[0]
    assert read_model_file(models[0], "none").projector_path == ""


async def test_why_a_projector_was_passed_over_goes_to_the_worker(tmp_path: Path) -> None:
    settings = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path)
    pool = EnginePool(settings, thread_worker(), FakeMemory(20, SIZES), IdleTuning(lambda: False))
    model = tiny_llama(tmp_path / "m.gguf")
    tiny_projector(tmp_path / "mmproj-m.gguf", n_embd=96)
    config = pool.engine_for(model, read_model_file(model), NOTHING_ATTACHED, None).engine.config
    assert config.projector_path == ""
    assert "its embeddings are 96 wide" in config.passed_over[0]


async def test_reloading_is_refused_while_another_name_answers(service: Service) -> None:
    await service.make(MADE, system="Be short.")
    await service.ask(MADE)
    base = await service.models.named(BASE)
    async with base.answer(ENDLESS) as events:
        await anext(events)
        refused = await service.call("reload", model=MADE, n_ctx=512)
        assert refused.status_code == 400
        assert "base is busy" in refused.json()["error"]["message"]
        await anext(events)
    assert (await service.call("reload", model=MADE, n_ctx=512)).status_code == 200
    assert (await base.ready()).n_ctx == 512
    await service.ask(MADE)
    assert service.pids[MADE] == service.pids[BASE]


@dataclass
class Timer:
    at_s: float
    callback: Callable[[], object]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Clock:
    """An event loop's timers, which run when a test lets time pass."""

    now_s: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.at_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


class Name:
    """A name of an engine whose state a test sets; it counts its releases."""

    def __init__(self, idle_s: float | None = None) -> None:
        self.status = EngineStatus(state="ready")
        self.clock = Clock()
        self.n_released = 0
        self.hold = KeepAlive(
            cast("EngineClient", self), idle_s, self._release, cast("asyncio.AbstractEventLoop", self.clock)
        )

    def _release(self) -> None:
        self.n_released += 1


def test_an_unused_name_holds_nothing() -> None:
    name = Name(idle_s=0)
    name.hold.ensure_timer()
    name.clock.advance(1)
    assert (name.hold.is_holding, name.n_released) == (False, 0)


def test_a_model_without_limit_stays_until_a_request_sets_one() -> None:
    name = Name()
    with name.hold.in_use():
        assert (name.hold.is_used, name.hold.is_holding) == (True, True)
    name.clock.advance(10**6)
    assert (name.hold.is_used, name.hold.is_holding, name.hold.expires_s) == (False, True, None)
    name.hold.set_idle_limit(1000)
    name.hold.restart_timer()
    name.clock.advance(400)
    assert name.hold.expires_s == pytest.approx(time.time() + 600, abs=100)
    name.clock.advance(600)
    assert (name.hold.is_holding, name.n_released) == (False, 1)


def test_a_use_stops_the_timer_and_its_end_restarts_it() -> None:
    name = Name(idle_s=1000)
    with name.hold.in_use(), name.hold.in_use():
        assert name.hold.expires_s == pytest.approx(time.time() + 1000, abs=100), "as if it ended now"
        name.clock.advance(2000)
        assert name.n_released == 0
    name.clock.advance(999)
    assert name.n_released == 0
    name.clock.advance(1)
    assert name.n_released == 1


def test_removing_the_limit_stops_the_timer() -> None:
    name = Name(idle_s=1)
    with name.hold.in_use():
        pass
    name.hold.set_idle_limit(None)
    name.hold.restart_timer()
    name.clock.advance(2)
    assert (name.n_released, name.hold.expires_s) == (0, None)


def test_the_end_of_one_use_of_two_starts_no_timer() -> None:
    name = Name(idle_s=0)
    with name.hold.in_use():
        with name.hold.in_use():
            pass
        name.clock.advance(1)
        assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_the_idle_limit_counts_from_the_next_idle_time_on() -> None:
    name = Name()
    name.hold.hold()
    name.hold.set_idle_limit(0)
    name.clock.advance(1)
    assert name.n_released == 0, "the request that sets it has not begun yet"
    name.hold.ensure_timer()
    name.clock.advance(0)
    assert name.n_released == 1


def test_another_names_idleness_does_not_restart_the_timer() -> None:
    name = Name(idle_s=100)
    name.hold.hold()
    name.hold.ensure_timer()
    name.clock.advance(60)
    name.hold.ensure_timer()
    name.clock.advance(40)
    assert name.n_released == 1


def test_a_model_that_is_loaded_beforehand_waits_a_minute_for_its_first_use_and_then_its_idle_time() -> None:
    name = Name(idle_s=0)
    name.hold.hold()
    name.hold.ensure_timer()
    name.clock.advance(59)
    assert name.n_released == 0
    with name.hold.in_use():
        pass
    name.clock.advance(0)
    assert name.n_released == 1


def test_a_failed_model_has_no_timer_and_is_still_held() -> None:
    name = Name(idle_s=0)
    name.status = EngineStatus(state="failed")
    with name.hold.in_use():
        pass
    name.hold.ensure_timer()
    name.clock.advance(1)
    assert (name.n_released, name.hold.is_holding) == (0, True)
    assert name.hold.expires_s is not None


def test_a_waiting_use_goes_on_waiting_when_the_model_is_evicted() -> None:
    name = Name()
    with name.hold.in_use():
        name.hold.clear()
        assert name.hold.is_holding
    assert name.hold.is_holding, "it was loaded again for this use"
    with name.hold.in_use():
        name.status = EngineStatus(state="unloaded")
    assert not name.hold.is_holding


def _unload(name: Name) -> None:
    """Do what the engine's owner does when the engine is unloaded."""
    name.status = EngineStatus(state="unloaded")
    name.hold.clear()


@pytest.mark.parametrize("asked_s", [0, 5, 1000, None])
def test_a_limit_of_a_request_ends_with_the_hold_and_the_next_one_has_the_usual_limit(asked_s: float | None) -> None:
    name = Name(idle_s=100)
    with name.hold.in_use(IdleLimit(asked_s)):
        pass
    name.clock.advance(2000)
    assert name.n_released == (asked_s is not None)
    _unload(name)
    name.status = EngineStatus(state="ready")
    with name.hold.in_use():
        pass
    name.clock.advance(99)
    assert name.hold.is_holding
    name.clock.advance(1)
    assert not name.hold.is_holding


def test_a_limit_of_a_request_holds_for_later_uses_until_the_model_is_unloaded() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use(IdleLimit(1000)):
        pass
    with name.hold.in_use():
        pass
    name.clock.advance(999)
    assert name.hold.is_holding


def test_a_limit_outlives_an_eviction_during_the_use_that_set_it() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use(IdleLimit(1000)):
        name.hold.clear()
    name.clock.advance(999)
    assert name.hold.is_holding


def test_a_use_whose_model_cannot_be_loaded_leaves_the_usual_limit() -> None:
    name = Name(idle_s=None)
    with name.hold.in_use(IdleLimit(0)):
        name.status = EngineStatus(state="unloaded")
    assert name.hold.expires_s is None


def test_a_model_pinned_at_the_start_is_pinned_again_after_it_was_stopped() -> None:
    name = Name(idle_s=10)
    name.hold.set_usual_limit(None)
    name.hold.hold()
    name.hold.expire()
    name.clock.advance(0)
    assert name.n_released == 1
    with name.hold.in_use():
        pass
    assert name.hold.expires_s is None


def test_stopping_waits_for_the_uses_that_have_begun_and_is_forgotten_without_a_hold() -> None:
    name = Name(idle_s=100)
    name.hold.expire()
    with name.hold.in_use():
        pass
    assert name.hold.expires_s == pytest.approx(time.time() + 100, abs=50), "it was not loaded when it was stopped"
    with name.hold.in_use():
        name.hold.expire()
        name.clock.advance(1)
        assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_a_request_that_uses_the_engine_twice_keeps_it_between_both() -> None:
    name = Name(idle_s=100)
    with name.hold.in_request():
        for _ in range(2):
            with name.hold.in_use(IdleLimit(0)):
                pass
            name.clock.advance(1)
            assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_an_idle_time_that_ends_during_a_request_ends_the_hold_only_after_its_use() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use():
        pass
    with name.hold.in_request():
        name.clock.advance(20)
        assert name.hold.is_holding
    assert name.hold.is_holding, "it counts anew"
    name.clock.advance(10)
    assert not name.hold.is_holding


def test_a_request_that_asks_the_engine_nothing_does_not_lengthen_the_idle_time() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use():
        pass
    name.clock.advance(6)
    with name.hold.in_request():
        pass
    name.clock.advance(4)
    assert not name.hold.is_holding


async def test_loading_a_model_whose_hash_differs_says_so_once_and_works(tmp_path: Path, tiny_model: Path) -> None:
    path = shutil.copy(tiny_model, tmp_path / "m.gguf")
    settings = Settings(engine="fake", data_dir=tmp_path, cache_dir=tmp_path)
    with Index(tmp_path) as index:
        index.record_mismatch(path, "m.gguf has another SHA-256.")
    pool = EnginePool(settings, thread_worker(), FakeMemory(20, {"m": 1}), IdleTuning(lambda: False))
    shared = pool.engine_for(path, read_model_file(path), NOTHING_ATTACHED, None)
    said = []
    for is_right in (False, True):
        if is_right:
            with Index(tmp_path) as index:
                index.record_sha256(path, "0" * 64)
        async with shared.engine.in_use():
            assert shared.engine.status.state == "ready"
            said.append([text for text in shared.engine.status.notices if "SHA-256" in text])
        shared.engine.unload()
    assert said == [[f"`localllm verify` found a damaged file: m.gguf has another SHA-256. {MISMATCH_REMEDY}"], []]
    await pool.close()
