"""Finding in the open chat, also in messages that are not mounted."""

from __future__ import annotations

import pytest

from app.chat.branches import TranscriptEntry
from app.chat.conversation import Message
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tui.chat.transcript.find import Match, matches_in

FILLER = "\n\n".join(f"row {number}" for number in range(40))


def _client() -> ScriptedClient:
    """Five long answers: the first one has a needle far from any end, the third two."""
    texts = [
        f"{FILLER}\n\nfirst Needle here\n\n{FILLER}",
        FILLER,
        f"a **needle** and\n\n{FILLER}\n\none needle",
        FILLER,
    ]
    return ScriptedClient(*(ScriptedReply(deltas=(text,)) for text in (*texts, f"{FILLER}\n\nthe last row")))


async def _has_asked(user) -> None:
    for number in range(5):
        await user.asks(f"question {number}")
        await user.until(
            lambda number=number: (
                not user.app.screen.is_answering and len(user.app.screen.transcript.entries) == 2 * number + 2
            ),
            "no answer",
        )
    await user.sees("the last row")


def _entry(number: int, content: str) -> TranscriptEntry:
    return TranscriptEntry(message=Message(id=number, parent_id=None, role="user", content=content))


def test_matches_are_in_order_and_in_any_case():
    entries = (_entry(1, "Leek and leek"), _entry(2, "no"), _entry(3, "LEEKS"))
    assert matches_in(entries, "leek") == (Match(1, 0), Match(1, 1), Match(3, 0))
    assert matches_in(entries, "") == matches_in(entries, "  ") == matches_in(entries, "x") == ()


@pytest.mark.slow
async def test_enter_goes_from_match_to_match_and_escape_back(open_app):
    async with open_app(_client()) as user:
        await _has_asked(user)
        await user.presses("ctrl+f")
        await user.sees("Find in this chat")
        await user.types("needle")
        await user.sees("3 found")
        await user.presses("enter")
        await user.sees("1 of 3", "first Needle here")
        assert user.app.screen.get_selected_text() == "Needle"
        await user.presses("f3")
        await user.sees("2 of 3", "a needle and")
        await user.presses("down")
        await user.sees("3 of 3", "one needle")
        await user.presses("enter")
        await user.sees("1 of 3", "first Needle here")
        await user.presses("up")
        await user.sees("3 of 3", "one needle")
        await user.presses("shift+enter")
        await user.sees("2 of 3", "a needle and")
        await user.presses("escape")
        await user.sees("the last row")
        await user.no_longer_sees("of 3")
        assert user.app.screen.get_selected_text() is None
        await user.types("goes to the prompt")
        await user.sees("goes to the prompt")


@pytest.mark.slow
async def test_it_goes_back_to_where_the_user_was_reading(open_app):
    async with open_app(_client()) as user:
        await _has_asked(user)
        await user.presses("pageup", "pageup")
        await user.no_longer_sees("the last row")
        before = [row for row in user.screen_text.splitlines() if "row" in row]
        await user.asks("/find needle")
        await user.presses("enter")
        await user.sees("1 of 3", "first Needle here")
        await user.presses("escape")
        await user.until(lambda: [row for row in user.screen_text.splitlines() if "row" in row] == before, "elsewhere")


@pytest.mark.slow
async def test_what_is_not_there_is_said_and_an_answer_goes_on(open_app):
    async with open_app(ScriptedClient(ScriptedReply(deltas=("half", " whole"), pause_after=1))) as user:
        await user.asks("go")
        await user.sees("half")
        await user.presses("ctrl+f")
        await user.types("whole")
        await user.sees("not in this chat")
        await user.presses("escape")
        await user.sees("answering")
