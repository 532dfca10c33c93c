"""Code blocks are copied as the model wrote them: the one, or one of several."""

from __future__ import annotations

import pytest

from app.client.fake import ScriptedClient, ScriptedReply

LONG = "x = " + "1" * 200  # does not fit a row
ONE = f"So:\n\n```python\ndef f():\n\treturn 1  # twice\n\n{LONG}\n```\n\nThat is all."
THREE = "```sh\nls\n```\n\n```sh\nrm -r x\n```\n\n~~~\nthird\n~~~\n"


def _answering(text: str) -> ScriptedClient:
    return ScriptedClient(ScriptedReply(deltas=(text,)))


async def test_the_only_block_of_the_selected_message_is_copied(sitting):
    async with sitting(_answering(ONE)) as person:
        await person.asks("go")
        await person.sees("That is all.", "ready")
        await person.presses("ctrl+up")
        await person.sees("Code")
        await person.presses("c")
        await person.sees("Copied")
        assert person.app.clipboard == f"def f():\n\treturn 1  # twice\n\n{LONG}"


@pytest.mark.parametrize("keys", ["2", "down enter"])
async def test_one_of_several_blocks_is_chosen_by_number_or_with_the_arrows(sitting, keys):
    async with sitting(_answering(THREE)) as person:
        await person.asks("go")
        await person.sees("third", "ready")
        await person.presses("ctrl+up", "c")
        await person.sees("1  sh, 1 line: ls", "3  code, 1 line: third")
        await person.presses("9", *keys.split())  # there is no ninth: nothing happens
        await person.sees("Copied 7 characters.")
        assert person.app.clipboard == "rm -r x"


async def test_the_slash_command_takes_a_number_and_means_the_last_answer(sitting):
    async with sitting(_answering(THREE)) as person:
        await person.asks("/code")
        await person.sees("There is no code block to copy.")
        await person.asks("go")
        await person.sees("third", "ready")
        await person.asks("/code 3")
        await person.sees("Copied 5 characters.")
        assert person.app.clipboard == "third"
        await person.asks("/code 4")
        await person.sees("There are 3 code blocks.")
        assert person.app.clipboard == "third"


async def test_the_palette_copies_of_the_selected_message(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("```\nfirst\n```",)), ScriptedReply(deltas=("```\nsecond\n```",)))
    async with sitting(client) as person:
        for question, answer in (("one", "first"), ("two", "second")):
            await person.asks(question)
            await person.sees(answer, "ready")
        await person.presses("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+p", *"copyacode")
        await person.sees("Put one of")
        await person.presses("enter")
        await person.sees("Copied 5 characters.")
        assert person.app.clipboard == "first"


async def test_escape_copies_nothing(sitting):
    async with sitting(_answering(THREE)) as person:
        await person.asks("go")
        await person.sees("third", "ready")
        await person.presses("ctrl+up", "c")
        await person.sees("1  sh")
        await person.presses("escape")
        await person.no_longer_sees("1  sh")
        assert person.app.clipboard == ""


async def test_hostile_code_is_copied_and_listed_without_its_escape_sequences(sitting):
    hostile = "```\x1b]52;c;AAAA\x07sh\nrm\x1b[201~\x9b31m\n```\n\n```\n[red]x[/red]\u202e\n```\n"
    async with sitting(_answering(hostile)) as person:
        await person.asks("go")
        await person.sees("201~", "ready")
        await person.presses("ctrl+up", "c")
        await person.sees("2  code, 1 line: [red]x[/red]")
        await person.presses("1")
        await person.sees("Copied")
        assert person.app.clipboard == "rm[201~31m"
