"""The plan screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.protocol.library import PlanDraft
from app.protocol.plan import MeasuredRun, PlanReport, PlanRequest
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.client.scripted_client import READY, ScriptedClient
from tests.tui.plans import planner_for
from tui.plan.screen import Stepper


def scripted(name: str = "gemma-2-9b", machine: str = "RTX 3060 12 GB, 32 GB RAM") -> ScriptedClient:
    client = ScriptedClient()
    client.plan_answer = planner_for(name, machine=machine)
    return client


async def open_plan(user) -> None:
    """Go to the plan and wait until the keys go to a dial."""
    await user.presses("f7")
    await user.until(lambda: isinstance(user.app.focused, Stepper), "no dial has the keys")


@pytest.mark.slow
async def test_a_plan_is_there_on_f7_with_devices_and_curve_and_a_way_out_is_taken_with_enter(open_app):
    client = scripted()
    async with open_app(client) as user:
        await open_plan(user)
        await user.sees(
            "guide on this machine", "39 of 43 layers", "◆ this plan", "Keep the cache in q8_0", "Layers: CUDA0"
        )
        await user.presses("down", "down", "enter")
        await user.sees("q8_0 ▶")
    assert client.plan_requests[-1].kv_type == "q8_0"


class SlowPlanner(ScriptedClient):
    """Once `is_slow`, plans of that kind wait for `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.plan_answer = planner_for()
        self.is_slow: Callable[[PlanRequest], bool] = lambda _request: False
        self.go_on = asyncio.Event()

    async def plan(self, request: PlanRequest) -> PlanReport:
        if self.is_slow(request):
            await self.go_on.wait()
        return await super().plan(request)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [("up", "right"), ("m", "x", "enter")], ids=["a value", "the model"])
@pytest.mark.parametrize("waits_for_all", [True, False], ids=["no plan yet", "no advice yet"])
async def test_while_a_plan_changes_no_advice_of_the_former_one_is_shown_or_done(
    open_app, keys: tuple[str, ...], waits_for_all: bool
):
    client = SlowPlanner()
    async with open_app(client) as user:
        await open_plan(user)
        await user.sees("2  Keep the cache in q8_0")
        client.is_slow = lambda request: waits_for_all or request.is_full
        await user.presses(*keys)
        await user.sees("What would help", "… computing")
        await user.until(lambda: "Keep the cache" not in user.screen_text, "the former advice is still there")
        await user.presses("2")
        await user.sees("still being computed")
        client.is_slow = lambda _request: False
        client.go_on.set()
        await user.sees("2  Keep the cache in q8_0")
        await user.presses("2")
        await user.sees("q8_0 ▶")
    assert client.plan_requests[-1].kv_type == "q8_0"
    assert [request.kv_type for request in client.plan_requests].count("q8_0") <= 3


@pytest.mark.slow
async def test_layers_change_with_the_arrows_the_plan_follows_and_up_leads_to_other_controls(open_app):
    client = scripted("llama-3.1-8b")
    async with open_app(client) as user:
        await open_plan(user)
        await user.presses("left", "left", "left")
        await user.sees("30 of 33 layers", "plan: 30 layers", "30 of 33 layers are on GPUs")
        await user.presses("a")
        await user.sees("33 of 33, planned", "● All 33 layers")
        await user.presses("up", "up", "right")
        await user.sees("bf16")
        await user.presses("up", "left")
        await user.sees("4,096 tokens")
    assert client.plan_requests[-1].n_ctx == 4096


@pytest.mark.slow
async def test_loading_is_announced_before_it_is_done_and_again_after_a_change(open_app):
    client = scripted("llama-3.1-8b")
    async with open_app(client) as user:
        await open_plan(user)
        await user.presses("l", "left", "l")
        await user.sees("reloads with", "32 layers on", "L again to confirm")
        assert client.reloads == []
        await user.presses("l")
        await user.sees("Loading: Esc")
    assert [request.gpu_layers for request in client.reloads] == [{"CUDA0": 32}]


@pytest.mark.slow
async def test_another_model_is_planned_by_name_and_another_machine_that_nothing_is_loaded_on(open_app):
    client = scripted("llama-3.1-8b")
    async with open_app(client) as user:
        await open_plan(user)
        await user.presses("m")
        await user.sees("Plan which model?")
        await user.pastes("org/repo:Q4_K_M")
        await user.presses("enter")
        await user.sees("org/repo:Q4_K_M on this machine")
        await user.presses("w")
        await user.sees("Plan for which machine?")
        await user.pastes("RTX 3060=12GiB, 32GiB@45GB/s")
        await user.presses("enter")
        await user.sees("on RTX 3060=12GiB + 32GiB@45GB/s RAM")
        await user.presses("l")
        await user.sees("This plan is for another machine")
    assert client.reloads == []
    assert client.plan_requests[-1].vram == ("RTX 3060=12GiB",)


async def test_what_prevents_a_plan_is_reported(open_app):
    def refuse(_: PlanRequest):
        raise ModelFileError("There is no model 'x\x1b[31m'.", "Here are: guide.")

    client = ScriptedClient()
    client.plan_answer = refuse
    async with open_app(client) as user:
        await user.presses("f7")
        await user.sees("No plan: There is no model", "Here are: guide.")
        assert "\x1b" not in user.screen_text


@pytest.mark.slow
async def test_a_narrow_terminal_shows_all_of_it_by_going_down(open_app):
    client = scripted()
    async with open_app(client, size=(60, 20)) as user:
        await open_plan(user)
        await user.until(lambda: client.plan_requests[-1].is_full, "no full plan was asked for")
        await user.pilot.pause()
        await user.presses("down")
        await user.sees("What would help")


@pytest.mark.slow
async def test_the_model_of_the_open_chat_is_planned_and_only_once(open_app):
    client = scripted()
    async with open_app(client) as user:
        await open_plan(user)
        await user.until(lambda: client.plan_requests[-1].is_full, "no full plan was asked for")
        n_full = sum(request.is_full for request in client.plan_requests)
        await user.presses("escape")
        await user.sees("Ask something")
        await user.presses("f7")
        await user.sees("guide on this machine")
        n_visits = len(client.plan_requests)
        await user.presses("escape", "f7")
        await user.until(lambda: len(client.plan_requests) > n_visits, "new answers are not looked for")
        await user.pilot.pause(0.6)
        assert sum(request.is_full for request in client.plan_requests) == n_full
        assert not any(request.is_fresh for request in client.plan_requests)
        await user.presses("escape")
        client.model = replace(READY, id="another")
        await user.app.app_context.connection.use_model("another")
        await user.presses("f7")
        await user.sees("another on this machine")
    assert {request.model for request in client.plan_requests} == {"guide", "another"}


@pytest.mark.slow
async def test_an_answer_since_the_last_visit_is_in_the_headline(open_app):
    client = scripted("llama-3.1-8b")
    async with open_app(client, size=(120, 40)) as user:
        await open_plan(user)
        await user.sees("All 33 layers on the GPU: about")
        run = MeasuredRun(kind="decode", depth=9, tps=33.0, gpu_layers=33, at_s=1.0)
        client.plan_answer = planner_for("llama-3.1-8b", measured=(run,))
        await user.presses("escape", "f7")
        await user.sees("writes 33 tokens a second · measured here")


@pytest.mark.slow
async def test_a_plan_that_is_old_is_made_again(open_app):
    client, now_s = scripted(), 0.0
    async with open_app(client, clock=lambda: now_s) as user:
        await open_plan(user)
        await user.until(lambda: client.plan_requests[-1].is_full, "no full plan was asked for")
        await user.pilot.pause()
        n_requests = len(client.plan_requests)
        await user.presses("escape")
        now_s = 301.0
        await user.presses("f7")
        await user.until(
            lambda: any(request.is_full for request in client.plan_requests[n_requests:]), "no new plan was made"
        )


@pytest.mark.slow
async def test_suggestions_are_done_by_their_numbers(open_app):
    client = scripted()
    async with open_app(client) as user:
        await open_plan(user)
        await user.sees("1  Quantize to Q6_K", "2  Keep the cache")
        await user.presses("1")
        await user.sees("Writes another file of guide")
        await user.presses("enter")
        await user.sees("is being quantized to Q6_K")
        await user.presses("2")
        await user.sees("q8_0 ▶")
        await user.presses("9")
    assert client.started == [("quantize", {"source": "guide", "file_type": "Q6_K"})]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_the_words_of_the_engine_are_one_key_away(open_app, size):
    async with open_app(scripted(), size=size) as user:
        await open_plan(user)
        await user.sees("What would help")
        assert "KV cells" not in user.screen_text
        assert ("weights" in user.screen_text) == (size[0] >= 120)
        await user.presses("d")
        await user.sees("weights", "KV cells", "± 35%")
        await user.presses("d")
        await user.no_longer_sees("KV cells")


@pytest.mark.slow
async def test_what_drafts_would_do_stands_below_what_would_help(open_app):
    client = scripted()
    answer = client.plan_answer
    draft = PlanDraft(
        what="a copy of itself in Q2_K",
        bytes=3 << 30,
        layers=40,
        draft_tokens=2,
        acceptance=0.8,
        decode_tps=30.0,
        gain=1.35,
        least_acceptance=0.41,
        file_type="Q2_K",
    )
    client.plan_answer = lambda request: replace(answer(request), drafts=(draft,) if request.is_full else ())
    async with open_app(client, size=(160, 50)) as user:
        await open_plan(user)
        await user.sees("A draft model beside it", "a copy of itself in Q2_K (3.0 GiB): 1.35 times as fast")
