"""Messages with versions: selected, answered again, put in other words, continued, deleted and brought back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.events import Key

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply

TWO = (ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))


def _texts(request) -> list[str]:
    return [message.content for message in request]


@pytest.mark.slow
async def test_a_version_of_an_answer_can_be_selected_and_continued(open_app, tmp_path):
    client = ScriptedClient(*TWO, ScriptedReply(deltas=("On.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("again?")
        await user.sees("First try.", "ready")
        await user.presses("ctrl+r")
        await user.sees("Second try.", "‹ 2/2 ›", "ready")
        await user.presses("ctrl+up", "left")
        await user.sees("First try.", "‹ 1/2 ›")
        await user.no_longer_sees("Second try.")
        await user.presses("left", "escape")
        await user.asks("and now?")
        await user.sees("On.")
    assert _texts(client.requests[2]) == ["again?", "First try.", "and now?"]
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("First try.", "‹ 1/2 ›", "On.")


@pytest.mark.slow
async def test_a_click_on_the_arrow_shows_the_other_version(open_app):
    async with open_app(ScriptedClient(*TWO)) as user:
        await user.asks("again?")
        await user.sees("First try.", "ready")
        await user.presses("ctrl+r")
        await user.sees("‹ 2/2 ›", "ready")
        rows = user.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "‹ 2/2 ›" in line)
        await user.pilot.click(offset=(rows[row].index("‹"), row))
        await user.sees("First try.", "‹ 1/2 ›")


@pytest.mark.slow
async def test_an_edited_question_is_a_version_and_its_answer_another_branch(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Of cats.",)), ScriptedReply(deltas=("Of dogs.",)))
    async with open_app(client) as user:
        await user.asks("About cats")
        await user.sees("Of cats.", "ready")
        await user.presses("ctrl+up", "ctrl+up")
        await user.sees("edit")
        await user.presses("e")
        await user.sees("Editing the question")
        await user.presses("backspace", "backspace", "backspace", "backspace")
        await user.asks("dogs")
        await user.sees("About dogs", "Of dogs.", "‹ 2/2 ›", "ready")
        await user.no_longer_sees("Of cats.")
        assert "Editing the question" not in user.screen_text
        await user.presses("ctrl+up", "ctrl+up", "left")
        await user.sees("About cats", "Of cats.", "‹ 1/2 ›")
    assert _texts(client.requests[1]) == ["About dogs"]


@pytest.mark.slow
async def test_escape_leaves_a_question_as_it_was(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("About cats")
        await user.sees("Hello.", "ready")
        await user.asks("/edit")
        await user.sees("Editing the question")
        await user.presses("escape")
        await user.no_longer_sees("Editing the question")
        await user.asks("next")
        await user.sees("next", "ready")
    assert _texts(client.requests[1]) == ["About cats", "Hello.", "next"]


@pytest.mark.slow
async def test_a_stopped_answer_is_continued_and_saved_as_one(open_app, tmp_path):
    half = ScriptedReply(deltas=("Once upon", " never"), pause_after=1)
    client = ScriptedClient(half, ScriptedReply(deltas=(" a time.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.asks("tell")
        await user.sees("Once upon")
        await user.presses("escape")
        await user.sees("stopped")
        await user.presses("ctrl+g")
        await user.sees("Once upon a time.", "ready")
        await user.no_longer_sees("stopped")
        await user.presses("ctrl+g")
        await user.sees("There is no unfinished answer")
    assert _texts(client.requests[1]) == ["tell", "Once upon"]
    assert client.options[1].continue_final_message
    assert not client.options[0].continue_final_message
    with ChatStore(tmp_path) as store:
        chat = store.chats.latest()
        assert [message.content for message in store.messages.of(chat.id)] == ["tell", "Once upon a time."]


@pytest.mark.slow
async def test_a_cut_answer_of_another_day_is_written_on(open_app, tmp_path):
    cut = ScriptedReply(deltas=("One, two",), ending=replace(COMPLETED, finish_reason="length"))
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(cut), repository=repository) as user,
    ):
        await user.asks("count")
        await user.sees("token limit reached")
    client = ScriptedClient(ScriptedReply(deltas=(", three",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("One, two")
        await user.asks("/continue")
        await user.sees("One, two, three", "ready")
        await user.no_longer_sees("token limit reached")


@pytest.mark.slow
async def test_a_deletion_is_undone_with_alt_u(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        for question in ("first", "second"):
            await user.asks(question)
            await user.sees(question, "Hello.", "ready")
        await user.presses("ctrl+up", "ctrl+up", "delete")
        await user.sees("Deleted 2 messages: Undo, Alt+U or /undo")
        await user.no_longer_sees("▌ second")
        with ChatStore(tmp_path) as store:
            chat = store.chats.latest()
            assert [message.content for message in store.messages.of(chat.id)] == ["first", "Hello."]
        await user.presses("alt+u")
        await user.sees("▌ second")
        await user.no_longer_sees("Deleted")
        with ChatStore(tmp_path) as store:
            transcript = store.transcripts.read(chat.id)
            assert [message.content for message in transcript.branch] == ["first", "Hello.", "second", "Hello."]


async def test_undo_is_the_prompts_own_while_nothing_was_deleted(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.pastes("draft")
        await user.sees("draft")
        await user.presses("alt+u")
        await user.no_longer_sees("draft")


async def test_an_answer_that_came_to_nothing_is_no_version(open_app):
    client = ScriptedClient(ScriptedReply(ending=EngineError("It died.")), ScriptedReply(deltas=("Fine.",)))
    async with open_app(client) as user:
        await user.asks("die")
        await user.sees("It died.", "ready")
        await user.presses("ctrl+r")
        await user.sees("Fine.", "ready")
        assert "2/2 ›" not in user.screen_text


@pytest.mark.slow
async def test_selected_message_is_copied_and_below_the_last_one_is_the_prompt(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("copy me")
        await user.sees("Hello.", "ready")
        await user.presses("alt+up", "alt+up", "y")
        await user.sees("Copied 7 characters.")
        assert user.app.clipboard == "copy me"
        await user.presses("alt+down", "alt+down", "y")
        await user.sees("│ y")


@pytest.mark.slow
@pytest.mark.parametrize("n_lines", [1, 30], ids=["short", "long"])
async def test_the_keys_of_the_last_message_are_in_view(open_app, n_lines):
    client = ScriptedClient(*[ScriptedReply(deltas=("\n\n".join("abc" * n_lines), "\n\nDone."))] * 2)
    async with open_app(client) as user:
        for question in ("first", "second"):
            await user.asks(question)
            await user.sees("Done.", "ready")
        await user.presses("ctrl+up")
        await user.sees("R again")
        await user.presses("ctrl+up")
        await user.sees("E edit")


@pytest.mark.slow
async def test_nothing_is_changed_while_an_answer_is_under_way(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("slow",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("slow")
        await user.presses("ctrl+up", "delete")
        await user.sees("An answer is running")
        client.resume()
        await user.sees("slow", "ready")


async def _types_in_one_burst(user, *keys: str) -> None:
    """Press keys with nothing between them: they wait in line before the first one is looked at."""
    for key in keys:
        user.app.post_message(Key(key, key if len(key) == 1 else None))


@pytest.mark.slow
async def test_a_letter_right_behind_the_selection_is_for_the_message_and_not_for_the_prompt(open_app):
    async with open_app(ScriptedClient(*TWO)) as user:
        await user.asks("again?")
        await user.sees("First try.", "ready")
        await _types_in_one_burst(user, "ctrl+up", "r")
        await user.sees("Second try.", "‹ 2/2 ›", "ready")
        assert user.app.screen.prompt.text == ""


@pytest.mark.slow
async def test_each_key_of_a_burst_goes_to_the_widget_focused_by_the_previous_one(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Of cats.",)), ScriptedReply(deltas=("Of dogs.",)))
    async with open_app(client) as user:
        await user.asks("About cats")
        await user.sees("Of cats.", "ready")
        await _types_in_one_burst(user, "ctrl+up", "ctrl+up", "y", "e", *["backspace"] * 4, *"deer", "enter")
        await user.sees("About deer", "Of dogs.", "‹ 2/2 ›", "ready")
        assert user.app.clipboard == "About cats"
    assert _texts(client.requests[1]) == ["About deer"]


@pytest.mark.slow
async def test_what_is_typed_right_behind_the_way_back_is_typed(open_app):
    async with open_app(ScriptedClient(*TWO)) as user:
        await user.asks("again?")
        await user.sees("First try.", "ready")
        await _types_in_one_burst(user, "ctrl+up", "ctrl+down", *"cry", "ctrl+up", "escape", *"ect")
        await user.until(lambda: user.app.screen.prompt.text == "cryect", "letters were lost")
        assert user.app.clipboard == ""


@pytest.mark.slow
async def test_a_custom_key_for_the_selected_message_is_dispatched_as_early(open_app):
    async with open_app(ScriptedClient(*TWO), settings={"keys": {"again": "x"}}) as user:
        await user.asks("again?")
        await user.sees("First try.", "ready")
        await _types_in_one_burst(user, "ctrl+up", "x")
        await user.sees("Second try.", "‹ 2/2 ›", "ready")
