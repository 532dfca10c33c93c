"""Code blocks are copied as the model wrote them: the one, or one of several."""

from __future__ import annotations

import pytest

from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

LONG = "x = " + "1" * 200  # does not fit a row
ONE = f"So:\n\n```python\ndef f():\n\treturn 1  # twice\n\n{LONG}\n```\n\nThat is all."
THREE = "```sh\nls\n```\n\n```sh\nrm -r x\n```\n\n~~~\nthird\n~~~\n"


def _answering(text: str) -> ScriptedClient:
    return ScriptedClient(ScriptedReply(deltas=(text,)))


@pytest.mark.slow
async def test_the_only_block_of_the_selected_message_is_copied(open_app):
    async with open_app(_answering(ONE)) as user:
        await user.asks("go")
        await user.sees("That is all.", "ready")
        await user.presses("ctrl+up")
        await user.sees("Code")
        await user.presses("c")
        await user.sees("Copied")
        assert user.app.clipboard == f"def f():\n\treturn 1  # twice\n\n{LONG}"


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "has_code"), [("Plain words.", False), (ONE, True)])
async def test_the_key_that_copies_code_is_shown_at_a_message_that_has_code(open_app, answer, has_code):
    async with open_app(_answering(answer), size=(140, 40)) as user:
        await user.asks("go")
        await user.sees(answer[-12:], "ready")
        await user.presses("ctrl+up")
        await user.sees("y copy", "r again", "e edit")
        words = {hint.word for hint in user.app.screen.key_hints()}
        assert ("copy code" in words) == has_code
        await user.presses("ctrl+up")  # the question, which has no code
        await user.until(
            lambda: "copy code" not in {hint.word for hint in user.app.screen.key_hints()}, "the key stayed"
        )


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["2", "down enter"])
async def test_one_of_several_blocks_is_chosen_by_number_or_with_the_arrows(open_app, keys):
    async with open_app(_answering(THREE)) as user:
        await user.asks("go")
        await user.sees("third", "ready")
        await user.presses("ctrl+up", "c")
        await user.sees("1  sh, 1 line: ls", "3  code, 1 line: third")
        await user.presses("9", *keys.split())  # there is no ninth: nothing happens
        await user.sees("Copied 7 characters.")
        assert user.app.clipboard == "rm -r x"


@pytest.mark.slow
async def test_the_slash_command_takes_a_number_and_means_the_last_answer(open_app):
    async with open_app(_answering(THREE)) as user:
        await user.asks("/code")
        await user.sees("There is no code block to copy.")
        await user.asks("go")
        await user.sees("third", "ready")
        await user.asks("/code 3")
        await user.sees("Copied 5 characters.")
        assert user.app.clipboard == "third"
        await user.asks("/code 4")
        await user.sees("There are 3 code blocks.")
        assert user.app.clipboard == "third"


@pytest.mark.slow
async def test_the_palette_copies_of_the_selected_message(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("```\nfirst\n```",)), ScriptedReply(deltas=("```\nsecond\n```",)))
    async with open_app(client) as user:
        for question, answer in (("one", "first"), ("two", "second")):
            await user.asks(question)
            await user.sees(answer, "ready")
        await user.presses("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+p", *"copyacode")
        await user.sees("Copy one of")
        await user.presses("enter")
        await user.sees("Copied 5 characters.")
        assert user.app.clipboard == "first"


@pytest.mark.parametrize(("number", "copied"), [(0, "ls"), (1, "rm -r x"), (2, "third")])
async def test_a_click_on_the_head_of_a_block_copies_it(open_app, number, copied):
    async with open_app(_answering(THREE), size=(80, 40)) as user:
        await user.asks("go")
        await user.sees("third", "ready")
        rows = user.screen_text.splitlines()
        row = [y for y, text in enumerate(rows) if "c copy" in text][number]
        await user.pilot.click(offset=(rows[row].index("c copy") + 2, row))
        await user.sees(f"Copied {len(copied)} characters.")
        assert user.app.clipboard == copied


async def test_what_copies_a_block_is_no_part_of_a_selection(open_app):
    async with open_app(_answering("```sh\nls\n```\n")) as user:
        await user.asks("go")
        await user.sees("c copy", "ready")
        text = user.app.screen.query_one("MarkdownText")
        text.text_select_all()
        await user.presses("ctrl+c")
        await user.sees("Copied")
        assert "ls" in user.app.clipboard
        assert "copy" not in user.app.clipboard


@pytest.mark.slow
async def test_escape_copies_nothing(open_app):
    async with open_app(_answering(THREE)) as user:
        await user.asks("go")
        await user.sees("third", "ready")
        await user.presses("ctrl+up", "c")
        await user.sees("1  sh")
        await user.presses("escape")
        await user.no_longer_sees("1  sh")
        assert user.app.clipboard == ""


@pytest.mark.slow
async def test_hostile_code_is_copied_and_listed_without_its_escape_sequences(open_app):
    hostile = "```\x1b]52;c;AAAA\x07sh\nrm\x1b[201~\x9b31m\n```\n\n```\n[red]x[/red]\u202e\n```\n"
    async with open_app(_answering(hostile)) as user:
        await user.asks("go")
        await user.sees("201~", "ready")
        await user.presses("ctrl+up", "c")
        await user.sees("2  code, 1 line: [red]x[/red]")
        await user.presses("1")
        await user.sees("Copied")
        assert user.app.clipboard == "rm[201~31m"
