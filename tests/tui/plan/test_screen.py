"""A person looks at a plan, turns its dials and loads the model so."""

from __future__ import annotations

from app.client.fake import ScriptedClient
from app.protocol.plan import PlanRequest
from quantizer.errors import ModelFileError
from tests.tui.plans import planner_for
from tui.plan.controls import Stepper


def scripted(name: str = "gemma-2-9b", machine: str = "RTX 3060 12 GB, 32 GB RAM") -> ScriptedClient:
    client = ScriptedClient()
    client.planner.answer = planner_for(name, machine=machine)
    return client


async def sits_at_the_dials(person) -> None:
    """Go to the plan and wait until the keys go to a dial."""
    await person.presses("f7")
    await person.until(lambda: isinstance(person.app.focused, Stepper), "no dial has the keys")


async def test_a_plan_is_there_on_f7_with_devices_curve_and_ways_out(sitting):
    async with sitting(scripted()) as person:
        await person.presses("f7")
        await person.sees("gemma-2-9b on this machine", "43 of 43 layers", "◆ here", "--kv-type q8_0", "Layers on CUDA0")


async def test_layers_are_turned_with_the_arrows_and_the_plan_follows(sitting):
    async with sitting(scripted("llama-3.1-8b")) as person:
        await sits_at_the_dials(person)
        await person.presses("left", "left", "left")
        await person.sees("30 of 33 layers", "here: 30 layers", "30 of 33 layers are on GPUs")
        await person.presses("a")
        await person.sees("33 of 33, planned", "It fits")


async def test_other_dials_are_reached_with_up_and_down(sitting):
    client = scripted("llama-3.1-8b")
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.presses("up", "up", "right")
        await person.sees("bf16")
        await person.presses("up", "left")
        await person.sees("4,096 tokens")
    assert client.planner.wishes[-1].n_ctx == 4096


async def test_a_way_out_is_taken_with_enter(sitting):
    client = scripted()
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.sees("--kv-type q8_0")
        await person.presses("down", "down", "enter")
        await person.sees("q8_0 ▶")
    assert client.planner.wishes[-1].kv_type == "q8_0"


async def test_loading_is_said_before_it_is_done(sitting):
    client = scripted("llama-3.1-8b")
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.presses("left", "l")
        await person.sees("unloaded and loaded again with", "32 layers on CUDA0", "L again does it")
        assert client.planner.reloads == []
        await person.presses("l")
        await person.sees("It is being loaded")
    assert [wish.gpu_layers for wish in client.planner.reloads] == [{"CUDA0": 32}]


async def test_a_change_after_it_was_said_has_to_be_said_anew(sitting):
    client = scripted("llama-3.1-8b")
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.presses("l", "left", "l")
        await person.sees("32 layers on CUDA0")
    assert client.planner.reloads == []


async def test_another_machine_can_be_planned_for_and_not_loaded_on(sitting):
    client = scripted("llama-3.1-8b")
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.presses("w")
        await person.sees("Plan for which machine?")
        await person.pastes("RTX 3060=12GiB, 32GiB@45GB/s")
        await person.presses("enter")
        await person.sees("on RTX 3060=12GiB + 32GiB@45GB/s RAM")
        await person.presses("l")
        await person.sees("This plan is for another machine")
    assert client.planner.reloads == []
    assert client.planner.wishes[-1].vram == ("RTX 3060=12GiB",)


async def test_another_model_is_asked_for_by_name(sitting):
    client = scripted("llama-3.1-8b")
    async with sitting(client) as person:
        await sits_at_the_dials(person)
        await person.presses("m")
        await person.sees("Plan which model?")
        await person.pastes("org/repo:Q4_K_M")
        await person.presses("enter")
        await person.sees("org/repo:Q4_K_M on this machine")


async def test_what_stands_in_the_way_of_a_plan_is_said(sitting):
    def refuse(_: PlanRequest):
        raise ModelFileError("There is no model 'x\x1b[31m'.", "Here are: guide.")

    client = ScriptedClient()
    client.planner.answer = refuse
    async with sitting(client) as person:
        await person.presses("f7")
        await person.sees("No plan: There is no model", "Here are: guide.")
        assert "\x1b" not in person.screen_text


async def test_a_narrow_terminal_shows_all_of_it_by_going_down(sitting):
    client = scripted()
    async with sitting(client, size=(60, 20)) as person:
        await sits_at_the_dials(person)
        await person.until(lambda: client.planner.wishes[-1].is_full, "no full plan was asked for")
        await person.pilot.pause()
        await person.presses("down")
        await person.sees("What would help")
