"""Messages with versions: selected, answered again, put in other words, continued, deleted and brought back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.events import Key

from app.chat.store import ChatStore
from app.client.fake import COMPLETED, ScriptedClient, ScriptedReply
from quantizer.errors import EngineError
from tui.chat.repository import SqliteChatRepository

TWO = (ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))


def _texts(request) -> list[str]:
    return [message.content for message in request]


async def test_person_steps_between_the_versions_of_an_answer_and_goes_on_from_one(sitting, tmp_path):
    client = ScriptedClient(*TWO, ScriptedReply(deltas=("On.",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("again?")
        await person.sees("First try.", "ready")
        await person.presses("ctrl+r")
        await person.sees("Second try.", "‹ 2/2 ›", "ready")
        await person.presses("ctrl+up", "left")
        await person.sees("First try.", "‹ 1/2 ›")
        await person.no_longer_sees("Second try.")
        await person.presses("left", "escape")
        await person.asks("and now?")
        await person.sees("On.")
    assert _texts(client.requests[2]) == ["again?", "First try.", "and now?"]
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("First try.", "‹ 1/2 ›", "On.")


async def test_a_click_on_the_arrow_shows_the_other_version(sitting):
    async with sitting(ScriptedClient(*TWO)) as person:
        await person.asks("again?")
        await person.sees("First try.", "ready")
        await person.presses("ctrl+r")
        await person.sees("‹ 2/2 ›", "ready")
        rows = person.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "‹ 2/2 ›" in line)
        await person.pilot.click(offset=(rows[row].index("‹"), row))
        await person.sees("First try.", "‹ 1/2 ›")


async def test_an_edited_question_is_a_version_and_its_answer_another_branch(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Of cats.",)), ScriptedReply(deltas=("Of dogs.",)))
    async with sitting(client) as person:
        await person.asks("About cats")
        await person.sees("Of cats.", "ready")
        await person.presses("ctrl+up", "ctrl+up")
        await person.sees("edit")
        await person.presses("e")
        await person.sees("Other words")
        await person.presses("backspace", "backspace", "backspace", "backspace")
        await person.asks("dogs")
        await person.sees("About dogs", "Of dogs.", "‹ 2/2 ›", "ready")
        await person.no_longer_sees("Of cats.")
        assert "Other words" not in person.screen_text
        await person.presses("ctrl+up", "ctrl+up", "left")
        await person.sees("About cats", "Of cats.", "‹ 1/2 ›")
    assert _texts(client.requests[1]) == ["About dogs"]


async def test_escape_leaves_a_question_as_it_was(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.asks("About cats")
        await person.sees("Hello.", "ready")
        await person.asks("/edit")
        await person.sees("Other words")
        await person.presses("escape")
        await person.no_longer_sees("Other words")
        await person.asks("next")
        await person.sees("next", "ready")
    assert _texts(client.requests[1]) == ["About cats", "Hello.", "next"]


async def test_a_stopped_answer_is_written_on_and_kept_as_one(sitting, tmp_path):
    half = ScriptedReply(deltas=("Once upon", " never"), pause_after=1)
    client = ScriptedClient(half, ScriptedReply(deltas=(" a time.",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("tell")
        await person.sees("Once upon")
        await person.presses("escape")
        await person.sees("stopped")
        await person.presses("ctrl+g")
        await person.sees("Once upon a time.", "ready")
        await person.no_longer_sees("stopped")
        await person.presses("ctrl+g")
        await person.sees("There is no answer")
    assert _texts(client.requests[1]) == ["tell", "Once upon"]
    assert client.options[1].continue_final_message
    assert not client.options[0].continue_final_message
    with ChatStore(tmp_path) as store:
        chat = store.chats.latest()
        assert [message.content for message in store.messages.of(chat.id)] == ["tell", "Once upon a time."]


async def test_a_cut_answer_of_another_day_is_written_on(sitting, tmp_path):
    cut = ScriptedReply(deltas=("One, two",), ending=replace(COMPLETED, finish_reason="length"))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(cut), keeper=keeper) as person:
        await person.asks("count")
        await person.sees("cut at the limit")
    client = ScriptedClient(ScriptedReply(deltas=(", three",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("One, two")
        await person.asks("/continue")
        await person.sees("One, two, three", "ready")
        await person.no_longer_sees("cut at the limit")


async def test_what_is_deleted_is_gone_and_comes_back_with_ctrl_z(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        for question in ("first", "second"):
            await person.asks(question)
            await person.sees(question, "Hello.", "ready")
        await person.presses("ctrl+up", "ctrl+up", "delete")
        await person.sees("Deleted 2 messages")
        await person.no_longer_sees("second")
        with ChatStore(tmp_path) as store:
            chat = store.chats.latest()
            assert [message.content for message in store.messages.of(chat.id)] == ["first", "Hello."]
        await person.presses("ctrl+z")
        await person.sees("second")
        with ChatStore(tmp_path) as store:
            transcript = store.transcripts.read(chat.id)
            assert [message.content for message in transcript.branch] == ["first", "Hello.", "second", "Hello."]


async def test_ctrl_z_is_the_prompts_own_while_nothing_was_deleted(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.pastes("draft")
        await person.sees("draft")
        await person.presses("ctrl+z")
        await person.no_longer_sees("draft")


async def test_an_answer_that_came_to_nothing_is_no_version(sitting):
    client = ScriptedClient(ScriptedReply(ending=EngineError("It died.")), ScriptedReply(deltas=("Fine.",)))
    async with sitting(client) as person:
        await person.asks("die")
        await person.sees("It died.", "ready")
        await person.presses("ctrl+r")
        await person.sees("Fine.", "ready")
        assert "2/2 ›" not in person.screen_text


async def test_selected_message_is_copied_and_below_the_last_one_is_the_prompt(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.asks("copy me")
        await person.sees("Hello.", "ready")
        await person.presses("alt+up", "alt+up", "y")
        await person.sees("Copied 7 characters.")
        assert person.app.clipboard == "copy me"
        await person.presses("alt+down", "alt+down", "y")
        await person.sees("│ y")


@pytest.mark.parametrize("n_lines", [1, 30], ids=["short", "long"])
async def test_the_keys_of_the_last_message_are_in_view(sitting, n_lines):
    client = ScriptedClient(*[ScriptedReply(deltas=("\n\n".join("abc" * n_lines), "\n\nDone."))] * 2)
    async with sitting(client) as person:
        for question in ("first", "second"):
            await person.asks(question)
            await person.sees("Done.", "ready")
        await person.presses("ctrl+up")
        await person.sees("R again")
        await person.presses("ctrl+up")
        await person.sees("E edit")


async def test_nothing_is_changed_while_an_answer_is_under_way(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("slow",), pause_after=1))
    async with sitting(client) as person:
        await person.asks("first")
        await person.sees("slow")
        await person.presses("ctrl+up", "delete")
        await person.sees("An answer is under way")
        client.resume()
        await person.sees("slow", "ready")


async def _types_in_one_burst(person, *keys: str) -> None:
    """Press keys with nothing between them: they wait in line before the first one is looked at."""
    for key in keys:
        person.app.post_message(Key(key, key if len(key) == 1 else None))


async def test_a_letter_right_behind_the_selection_is_for_the_message_and_not_for_the_prompt(sitting):
    async with sitting(ScriptedClient(*TWO)) as person:
        await person.asks("again?")
        await person.sees("First try.", "ready")
        await _types_in_one_burst(person, "ctrl+up", "r")
        await person.sees("Second try.", "‹ 2/2 ›", "ready")
        assert person.app.screen.prompt.text == ""


async def test_each_key_of_a_burst_goes_to_whom_the_one_before_it_led(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Of cats.",)), ScriptedReply(deltas=("Of dogs.",)))
    async with sitting(client) as person:
        await person.asks("About cats")
        await person.sees("Of cats.", "ready")
        await _types_in_one_burst(person, "ctrl+up", "ctrl+up", "y", "e", *["backspace"] * 4, *"deer", "enter")
        await person.sees("About deer", "Of dogs.", "‹ 2/2 ›", "ready")
        assert person.app.clipboard == "About cats"
    assert _texts(client.requests[1]) == ["About deer"]


async def test_what_is_typed_right_behind_the_way_back_is_typed(sitting):
    async with sitting(ScriptedClient(*TWO)) as person:
        await person.asks("again?")
        await person.sees("First try.", "ready")
        await _types_in_one_burst(person, "ctrl+up", "ctrl+down", *"cry", "ctrl+up", "escape", *"ect")
        await person.until(lambda: person.app.screen.prompt.text == "cryect", "letters were lost")
        assert person.app.clipboard == ""


async def test_a_person_s_own_key_for_the_selected_message_comes_as_early(sitting):
    async with sitting(ScriptedClient(*TWO), settings={"keys": {"again": "a"}}) as person:
        await person.asks("again?")
        await person.sees("First try.", "ready")
        await _types_in_one_burst(person, "ctrl+up", "a")
        await person.sees("Second try.", "‹ 2/2 ›", "ready")
