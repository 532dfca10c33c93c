"""Writing a question with what goes with it."""

from __future__ import annotations

import os
import sys

import pytest
from textual.events import Key, Paste

from tests.app.client.scripted_client import ScriptedClient


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sit in a folder with a text, a program and noise."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "soup.md").write_text("Salt and leeks.\n")
    (tmp_path / "prog.bin").write_bytes(b"\x7fELF\0")
    (tmp_path / ".secret").write_text("x")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
async def test_a_file_is_picked_after_an_at_sign_and_sent_to_the_model(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("What is in @sou")
        await user.sees("@notes/soup.md")
        await user.presses("tab")
        await user.sees("[notes/soup.md · 3 tokens")
        await user.sees("What is in @notes/soup.md")
        await user.types("and why?")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.no_longer_sees("3 tokens")
    sent = "notes/soup.md:\n```\nSalt and leeks.\n```\n\nWhat is in @notes/soup.md and why?"
    assert client.requests[0][0].content == sent


@pytest.mark.slow
async def test_a_file_mentioned_in_the_middle_of_a_question_stays_in_the_sentence(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("Compare with @sou")
        await user.sees("@notes/soup.md")
        await user.presses("tab")
        await user.sees("[notes/soup.md", "Compare with @notes/soup.md")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content.endswith("\n\nCompare with @notes/soup.md")


@pytest.mark.slow
async def test_a_mention_typed_in_full_attaches_its_file_without_tab(open_app, tmp_path):
    client = ScriptedClient()
    elsewhere = tmp_path.parent / f"{tmp_path.name}.txt"
    elsewhere.write_text("The word is banana.")
    async with open_app(client) as user:
        await user.types(f"What is this? @{elsewhere}")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.types("And @notes/soup.md")
        await user.sees("\n @notes/soup.md")  # the completion of a name that is whole does not take Enter
        await user.presses("enter")
        await user.until(lambda: len(client.requests) == 2, "the second question was not sent")
    assert client.requests[0][0].content == f"{elsewhere}:\n```\nThe word is banana.\n```\n\nWhat is this? @{elsewhere}"
    assert "Salt and leeks." in client.requests[1][-1].content


@pytest.mark.slow
async def test_a_mention_of_no_file_is_reported_and_its_question_stays_until_enter_is_pressed_again(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("What is in @nope.txt")
        await user.presses("enter")
        await user.sees("No such file: nope.txt. Enter again sends it as text.")
        assert user.app.screen.query_one("PromptInput").text == "What is in @nope.txt"
        assert client.requests == []
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "What is in @nope.txt"


@pytest.mark.slow
async def test_what_was_attached_stays_when_another_file_is_missing(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.pastes("word\n" * 20)
        await user.asks("Is it @nope.txt")
        await user.sees("No such file: nope.txt", "[pasted 1 · 20 tokens")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content.startswith("pasted 1:")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no name has a control character there")
async def test_a_file_whose_name_cannot_be_shown_is_attached_without_a_mention(open_app, tmp_path):
    client = ScriptedClient()
    (tmp_path / "ev\x1b[31mil.md").write_text("Flour.")
    async with open_app(client) as user:
        await user.types("What is @il")
        await user.sees("@ev[31mil.md")
        await user.presses("tab")
        await user.sees("[ev[31mil.md")
        await user.types("this?")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content.endswith("What is this?")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes with a name are files elsewhere")
async def test_a_pipe_is_refused_and_the_app_goes_on(open_app, tmp_path):
    client = ScriptedClient()
    os.mkfifo(tmp_path / "fifo")
    async with open_app(client) as user:
        await user.types("What? @fifo")
        await user.presses("tab", "enter")
        await user.sees("fifo is a pipe. Enter again sends it as text.")
        await user.presses("ctrl+u")
        await user.asks("Still here?")
        await user.sees("Hello.")
    assert [message.content for message in client.requests[0]] == ["Still here?"]


@pytest.mark.slow
async def test_a_name_with_spaces_is_completed_in_quotes(open_app, tmp_path):
    client = ScriptedClient()
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes" / "some bread.md").write_text("Flour.")
    async with open_app(client) as user:
        await user.types("What is @bread")
        await user.sees("@my notes/some bread.md")
        await user.presses("tab")
        await user.sees('What is @"my notes/some bread.md"')
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content.endswith('What is @"my notes/some bread.md"')
    assert client.requests[0][0].content.startswith("my notes/some bread.md:\n```\nFlour.")


@pytest.mark.slow
async def test_a_pasted_text_of_several_lines_takes_no_file_from_elsewhere(open_app, tmp_path):
    client = ScriptedClient()
    elsewhere = tmp_path.parent / "elsewhere.txt"
    elsewhere.write_text("sesame")
    async with open_app(client) as user:
        await user.asks(f"@../{elsewhere.name}\n@app.route('/')\n@notes/soup.md")
        await user.sees("../elsewhere.txt is outside this folder. Enter again sends it as text.")
        await user.presses("enter")
        await user.sees("Hello.")
    assert "sesame" not in client.requests[0][0].content
    assert "Salt and leeks." in client.requests[0][0].content


@pytest.mark.slow
async def test_hidden_files_are_not_offered_and_one_that_is_no_text_is_refused_in_words(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("@")
        await user.sees("@prog.bin", "@notes/soup.md")
        assert ".secret" not in user.screen_text
        await user.types("prog")
        await user.presses("tab")
        await user.sees("prog.bin is a program, which cannot be attached")


@pytest.mark.slow
async def test_a_file_that_came_since_the_last_one_was_picked_is_offered(open_app, tmp_path):
    async with open_app(ScriptedClient()) as user:
        await user.types("@sou")
        await user.sees("@notes/soup.md")
        await user.presses("tab")
        await user.sees("[notes/soup.md")
        (tmp_path / "bread.md").write_text("Flour.")
        await user.types("@bre")
        await user.sees("@bread.md")
        await user.presses("tab")
        await user.sees("[bread.md")


@pytest.mark.slow
async def test_a_file_elsewhere_is_reached_folder_by_folder(open_app, tmp_path, monkeypatch):
    client = ScriptedClient()
    monkeypatch.chdir(tmp_path / "notes")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "bread.md").write_text("Flour.")
    async with open_app(client) as user:
        await user.types("Which? @../mo")
        await user.sees("@../more/")
        await user.presses("tab")
        await user.sees("@../more/bread.md")
        await user.presses("tab")
        await user.sees("[../more/bread.md")
        await user.presses("enter")
        await user.sees("Hello.")
    sent = "../more/bread.md:\n```\nFlour.\n```\n\nWhich? @../more/bread.md"
    assert client.requests[0][0].content == sent


@pytest.mark.slow
async def test_a_long_paste_is_attached_and_backspace_removes_it(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.pastes("word\n" * 20)
        await user.sees("[pasted 1 · 20 tokens")
        await user.pastes("word " * 300)
        await user.sees("[pasted 2 · 300 tokens")
        await user.presses("backspace")
        await user.no_longer_sees("pasted 2")
        await user.asks("and?")
        await user.sees("Hello.")
    words = "word\n" * 20
    assert client.requests[0][0].content == f"pasted 1:\n```\n{words}```\n\nand?"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="paths have other forms there")
async def test_a_file_dropped_on_the_terminal_is_attached_and_backspace_removes_it(open_app, tmp_path):
    client = ScriptedClient()
    (tmp_path / "my soup.md").write_text("Peas.")
    async with open_app(client) as user:
        await user.types("Which? ")
        await user.pastes(f"'{tmp_path}/my soup.md' ")
        await user.sees("[my soup.md · 1 tokens")
        await user.pastes(f"file://{tmp_path}/notes/soup.md\r\nfile://{tmp_path}/my%20soup.md\r\n")
        await user.sees("[soup.md · 3 tokens", f"[{tmp_path.name}/my soup.md"[:9])
        await user.presses("ctrl+u", "backspace", "backspace")
        await user.no_longer_sees("[soup.md")
        await user.asks("Is it good?")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "my soup.md:\n```\nPeas.\n```\n\nIs it good?"


@pytest.mark.skipif(sys.platform == "win32", reason="paths have other forms there")
async def test_a_question_waits_for_the_file_that_was_dropped_just_before(open_app, tmp_path):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        user.app.post_message(Paste(f"{tmp_path}/notes/soup.md"))
        for character in "Why":
            user.app.post_message(Key(character, character))
        user.app.post_message(Key("enter", "\r"))
        await user.sees("Hello.")
    assert [request[-1].content for request in client.requests] == ["soup.md:\n```\nSalt and leeks.\n```\n\nWhy"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="paths have other forms there")
async def test_a_path_behind_a_command_or_an_at_sign_stays_text(open_app, tmp_path):
    async with open_app(ScriptedClient()) as user:
        await user.types("/system ")
        await user.pastes(f"{tmp_path}/notes/soup.md")
        assert user.app.screen.query_one("PromptInput").text == f"/system {tmp_path}/notes/soup.md"
        await user.presses("ctrl+u", "ctrl+u", "ctrl+u")
        await user.types("@")
        await user.pastes(f"{tmp_path}/notes/soup.md")
        assert user.app.screen.query_one("PromptInput").text == f"@{tmp_path}/notes/soup.md"


async def clicks_the_cross(user):
    width = user.app.screen.query_one("AttachmentBar Static").size.width
    await user.pilot.click("AttachmentBar Static", offset=(width - 2, 0))


async def test_a_click_on_its_cross_takes_an_attachment_away(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.pastes("word\n" * 20)
        await user.sees("pasted 1")
        await clicks_the_cross(user)
        await user.no_longer_sees("pasted 1")


@pytest.mark.slow
async def test_a_command_runs_while_something_is_attached_and_leaves_it_there(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.pastes("word\n" * 20)
        await user.asks("/system Be brief")
        await user.sees("System prompt: Be brief", "[pasted 1 ·")
        await user.asks("/nosuch")
        await user.sees("Unknown command /nosuch", "[pasted 1 ·")
    assert client.requests == []


@pytest.mark.slow
async def test_a_click_takes_a_file_away_with_its_mention(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("Why @sou")
        await user.sees("@notes/soup.md")
        await user.presses("tab")
        await user.sees("[notes/soup.md · 3 tokens")
        await clicks_the_cross(user)
        await user.no_longer_sees("soup.md")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "Why"


@pytest.mark.slow
async def test_commands_are_offered_while_a_slash_word_is_typed(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("/sy")
        await user.sees("/system", "Set the system prompt")
        await user.presses("tab")
        await user.no_longer_sees("Set the system prompt")
        await user.types("Be brief")
        await user.presses("enter")
        await user.sees("System prompt: Be brief")


@pytest.mark.slow
async def test_arrows_choose_among_offers_and_escape_hides_them(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("/")
        await user.sees("/new", "/model")
        await user.presses("down", "enter")
        await user.no_longer_sees("/new")
        assert user.app.screen.query_one("PromptInput").text == "/model "
        await user.presses("ctrl+u")
        await user.types("/n")
        await user.sees("/new")
        await user.presses("escape")
        await user.no_longer_sees("Start an empty chat")
        assert user.app.screen.query_one("PromptInput").text == "/n"


@pytest.mark.slow
async def test_a_word_that_is_whole_is_run_by_one_enter(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.types("/help")
        await user.presses("enter")
        await user.sees("Keys and commands")


async def test_enter_in_one_burst_with_a_word_takes_no_offer_for_its_beginning(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        for character in "/nosuch":
            user.app.post_message(Key(character, character))
        user.app.post_message(Key("enter", "\r"))
        await user.sees("Unknown command /nosuch")


@pytest.mark.slow
async def test_the_picker_shows_folders_and_of_how_many_files_the_best(open_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for number in range(20):
        (tmp_path / "src" / f"part{number}.txt").write_text("words")
    async with open_app(ScriptedClient()) as user:
        await user.types("see @")
        await user.sees("@src/", "8 of 2")
        await user.types("sr")
        await user.no_longer_sees("@notes/")
        await user.presses("tab")  # go on inside
        await user.types("p19")
        await user.sees("@src/part19.txt")
        await user.presses("tab")
        await user.sees("[src/part19.txt")
        await user.types("and @")
        await user.sees("8 of 2")
        offered = [row.strip() for row in user.screen_text.splitlines() if row.strip().startswith("@")]
        assert offered[0] == "@src/part19.txt"  # the one used last


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (50, 24)])
async def test_slash_words_are_in_one_column_and_their_meanings_in_another(open_app, size):
    async with open_app(ScriptedClient(), size=size) as user:
        await user.types("/")
        await user.sees("/new", "8 of ")
        rows = [row for row in user.screen_text.splitlines() if row.strip().startswith("/")]
        assert rows[0].strip().startswith("/new")
        assert len(rows) == 8
        assert len({len(row) - len(row.split(maxsplit=1)[1]) for row in rows}) == 1
