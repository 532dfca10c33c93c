"""Keys and words of the chat screen that a person brings along from other programs."""

from __future__ import annotations

import pytest

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.tui.model_scenes import client_with_models
from tui.chat.commands import EXAMPLES


@pytest.mark.parametrize("size", [(80, 24), (60, 18)])
async def test_the_start_screen_says_how_to_leave(open_app, size):
    async with open_app(ScriptedClient(), size=size) as user:
        await user.sees("Ctrl+Q", "Quit")


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit"])
async def test_the_words_of_other_programs_leave_the_app(open_app, word):
    async with open_app(ScriptedClient()) as user:
        await user.asks(word)
        await user.leaves()


@pytest.mark.slow
async def test_slash_clear_starts_a_new_chat(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        await user.asks("/clear")
        await user.no_longer_sees("Hello.")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["?", "/?"])
async def test_a_question_mark_alone_shows_the_help(open_app, line):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks(line)
        await user.sees("Keys and commands", "Esc closes")
    assert client.requests == []


async def test_a_misspelled_command_is_answered_with_the_likely_one(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("/qiut")
        await user.sees("Unknown command /qiut.", "/quit?")


async def test_slash_model_changes_the_model_by_a_part_of_its_name(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.sees("guide  ● ready")
        await user.asks("/model qwen3")
        await user.until(lambda: client.loads[-1:] == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"], "not loaded")
        await user.asks("/model nosuch")
        await user.sees("There is no local model nosuch.")


@pytest.mark.slow
async def test_slash_model_alone_lists_the_models_though_another_command_begins_like_it(open_app):
    async with open_app(client_with_models()) as user:
        await user.types("/model")
        await user.presses("enter")
        await user.sees("qwen3-0.6b-Q8_0", "enter chat")


async def _selects_with_the_mouse(user, text: str) -> None:
    rows = user.screen_text.splitlines()
    row = next(n for n, line in enumerate(rows) if text in line)
    column = rows[row].index(text)
    await user.pilot.mouse_down(offset=(column, row))
    await user.pilot.hover(offset=(column + len(text), row))
    await user.pilot.mouse_up(offset=(column + len(text), row))


@pytest.mark.slow
async def test_ctrl_c_copies_the_selection_of_the_prompt(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("keep this")
        await user.presses(*["shift+left"] * 4, "ctrl+c")
        await user.sees("Copied 4 characters.", "keep this")
        assert user.app.clipboard == "this"
        await user.presses("ctrl+c")
        await user.no_longer_sees("keep this")


@pytest.mark.slow
async def test_ctrl_c_copies_the_selection_of_an_answer_and_then_stops_the_answer(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Kept half\n\n", "never"), pause_after=1))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("Kept half", "answering")
        await _selects_with_the_mouse(user, "half")
        await user.presses("ctrl+c")
        await user.sees("Copied 4 characters.", "answering")
        assert user.app.clipboard == "half"
        await user.presses("ctrl+c")
        await user.sees("stopped", "ready")
    assert client.n_aborted == 1


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("f6",), ("f1",)], ids=["in the prompt", "on a screen", "in a dialog"])
async def test_ctrl_c_says_how_to_leave_where_there_is_nothing_to_copy_or_to_stop(open_app, keys):
    async with open_app(ScriptedClient()) as user:
        await user.presses(*keys, "ctrl+c")
        await user.sees("Ctrl+C again quits")
        await user.presses("ctrl+c")
        await user.leaves()


@pytest.mark.parametrize("text", ["one line", "two\nlines", "/command", "@file"])
async def test_ctrl_c_clears_the_line_and_up_brings_it_back(open_app, text):
    async with open_app(ScriptedClient()) as user:
        await user.pastes(text)
        await user.until(lambda: user.app.screen.prompt.text == text, "not pasted")
        await user.presses("ctrl+c")
        assert user.app.screen.prompt.text == ""
        assert "again quits" not in user.screen_text
        await user.presses("up")
        assert user.app.screen.prompt.text == text


async def test_what_is_typed_between_two_ctrl_c_is_no_wish_to_quit(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.presses("ctrl+c")
        await user.sees("again quits")
        await user.presses("x", "ctrl+c", "ctrl+c")
        await user.sees("again quits")
        assert not user.app._exit


@pytest.mark.slow
async def test_ctrl_c_ends_the_edit_of_a_question(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        await user.presses("ctrl+up", "ctrl+up", "e")
        await user.sees("Editing the question")
        await user.presses("ctrl+c")
        await user.no_longer_sees("Editing the question")
        assert user.app.screen.prompt.text == ""


@pytest.mark.slow
async def test_ctrl_c_can_be_the_key_of_another_command_and_its_command_have_another_key(open_app):
    keys = {"keys": {"new": "ctrl+c", "interrupt": "ctrl+x"}}
    async with open_app(ScriptedClient(), settings=keys) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        await user.presses("ctrl+x")
        await user.sees("Ctrl+X again quits")
        await user.presses("ctrl+c")
        await user.no_longer_sees("Hello.")


async def test_an_example_key_asks_nothing_in_a_chat_of_ones_own(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("mine")
        await user.sees("Hello.", "ready")
        await user.presses("f2")
        await user.sees("The examples are for")
        assert EXAMPLES[0] not in user.screen_text
    assert len(client.requests) == 1


@pytest.mark.slow
async def test_an_example_key_leaves_what_is_typed(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("slow",), pause_after=1))
    async with open_app(client) as user:
        await user.types("draft")
        await user.presses("f2")
        await user.sees("slow", "│ draft")
        await user.presses("f3")
        await user.sees("The examples are for", "│ draft")
        client.resume()
        await user.sees("ready", "│ draft")
    assert [request[-1].content for request in client.requests] == [EXAMPLES[0]]


async def _has_two_answers(user) -> None:
    for n_answers, question in enumerate(("first", "second"), 1):
        await user.asks(question)
        await _has_answers(user, n_answers)


async def _has_answers(user, n_answers: int) -> None:
    """Wait for the line of facts below each answer: it comes last, and moves the rows that are clicked."""
    await user.until(lambda: user.screen_text.count("tokens a second") == n_answers, "an answer is missing")
    await user.sees("ready")


@pytest.mark.slow
async def test_what_is_typed_after_a_click_on_an_answer_is_typed(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await _has_two_answers(user)
        row = next(n for n, line in enumerate(user.screen_text.splitlines()) if "Hello." in line)
        await user.pilot.click(offset=(6, row))
        await user.sees("R again")
        await user.types("code")
        await user.presses("backspace", "delete")
        await user.sees("│ cod", "first", "second")
        await user.presses("enter")
        await user.sees("▌ cod")
        await user.no_longer_sees("R again")
    assert [request[-1].content for request in client.requests] == ["first", "second", "cod"]


@pytest.mark.slow
async def test_the_actions_below_a_clicked_message_are_for_it(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await _has_two_answers(user)
        row = next(n for n, line in enumerate(user.screen_text.splitlines()) if "first" in line)
        await user.pilot.click(offset=(6, row))
        await user.sees("E edit")
        rows = user.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "E edit" in line)
        await user.pilot.click(offset=(rows[row].index("edit"), row))
        await user.sees("Editing the question", "│ first")


@pytest.mark.slow
async def test_what_is_typed_after_a_search_hit_is_opened_is_typed(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _has_two_answers(user)
        with ChatStore(tmp_path) as store:
            chat = store.chats.latest()
            first = store.messages.of(chat.id)[0]
        await user.app.open_chat(chat.id, first.id)
        await user.sees("E edit")
        await user.types("echo")
        await user.presses("backspace")
        await user.sees("│ ech", "first", "second")
        assert "Editing" not in user.screen_text


@pytest.mark.slow
async def test_backspace_deletes_no_message_even_if_one_was_selected_by_its_key(open_app):
    async with open_app(ScriptedClient()) as user:
        await _has_two_answers(user)
        await user.presses("ctrl+up", "backspace")
        await user.sees("first", "second", "R again")


@pytest.mark.slow
async def test_letters_that_are_no_command_of_the_selected_message_go_to_the_prompt(open_app):
    async with open_app(ScriptedClient()) as user:
        await _has_two_answers(user)
        await user.presses("ctrl+up")
        await user.sees("R again")
        await user.types("who?")
        await user.pastes(" me")
        await user.sees("│ who? me")


@pytest.mark.slow
async def test_a_deletion_stays_undoable_behind_the_next_question(open_app, tmp_path):
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await _has_two_answers(user)
        await user.presses("ctrl+up", "ctrl+up", "delete")
        await user.sees("Deleted 2 messages")
        await user.asks("third")
        await _has_answers(user, 2)
        rows = user.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "Undo" in line)
        await user.pilot.click(offset=(rows[row].index("Undo"), row))
        await user.sees("▌ second")
        await user.no_longer_sees("Deleted")
