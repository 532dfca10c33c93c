"""The plan screen."""

from __future__ import annotations

from app.protocol.plan import PlanRequest
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.client.scripted_client import ScriptedClient
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


async def test_a_plan_is_there_on_f7_with_devices_and_curve_and_a_way_out_is_taken_with_enter(open_app):
    client = scripted()
    async with open_app(client) as user:
        await open_plan(user)
        await user.sees("gemma-2-9b on this machine", "43 of 43 layers", "◆ plan", "--kv-type q8_0", "Layers: CUDA0")
        await user.presses("down", "down", "enter")
        await user.sees("q8_0 ▶")
    assert client.plan_requests[-1].kv_type == "q8_0"


async def test_layers_change_with_the_arrows_the_plan_follows_and_up_leads_to_other_controls(open_app):
    client = scripted("llama-3.1-8b")
    async with open_app(client) as user:
        await open_plan(user)
        await user.presses("left", "left", "left")
        await user.sees("30 of 33 layers", "plan: 30 layers", "30 of 33 layers are on GPUs")
        await user.presses("a")
        await user.sees("33 of 33, planned", "Fits")
        await user.presses("up", "up", "right")
        await user.sees("bf16")
        await user.presses("up", "left")
        await user.sees("4,096 tokens")
    assert client.plan_requests[-1].n_ctx == 4096


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


async def test_a_narrow_terminal_shows_all_of_it_by_going_down(open_app):
    client = scripted()
    async with open_app(client, size=(60, 20)) as user:
        await open_plan(user)
        await user.until(lambda: client.plan_requests[-1].is_full, "no full plan was asked for")
        await user.pilot.pause()
        await user.presses("down")
        await user.sees("Suggestions")
