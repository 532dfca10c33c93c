"""What comes below the view is counted while the user reads above."""

from __future__ import annotations

import pytest

from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

pytestmark = pytest.mark.slow

LONG = "\n\n".join(f"paragraph {number}" for number in range(30))


def _growing(*more: str) -> ScriptedClient:
    return ScriptedClient(ScriptedReply(deltas=(LONG,)), ScriptedReply(deltas=("new one", *more), pause_after=1))


async def _reads_above(user) -> None:
    await user.asks("first")
    await user.sees("paragraph 29", "ready")
    await user.asks("second")
    await user.sees("new one")
    await user.presses("pageup")
    await user.no_longer_sees("new one")


@pytest.mark.parametrize("leave", ["ctrl+end", "click", "pagedown"])
async def test_new_lines_are_counted_and_the_end_is_one_key_or_click_away(open_app, leave):
    client = _growing("\n\nnew two\n\nnew three\n\n")
    async with open_app(client) as user:
        await _reads_above(user)
        assert "new line" not in user.screen_text
        client.resume()
        await user.sees("↓ 6 new lines")  # with the line about the answer
        await (user.pilot.click("NewTextLine") if leave == "click" else user.presses(leave, leave))
        await user.sees("new three")
        await user.no_longer_sees("↓")


async def test_nothing_is_said_while_the_end_is_followed(open_app):
    client = _growing("\n\nnew two")
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("paragraph 29", "ready")
        await user.asks("second")
        await user.sees("new one")
        client.resume()
        await user.sees("new two", "ready")
        assert "↓" not in user.screen_text
