"""The question before a call of a tool: answered by a key that was meant for it, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest
from textual.events import Key

from app.chat.repository import SqliteChatRepository
from app.protocol.chat import ToolCall
from app.tools.tool import BoundCommand, Effect, Preview, ToolOutput, ToolProgress
from tests.app.chat.tool_chats import calling, said
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall, fake_tool
from tests.tui.conftest import QUICK_CLOCK
from tui.chat.tools.calls import ApprovalPanel

pytestmark = pytest.mark.slow

DIFF = "--- a/sum.py\n+++ b/sum.py\n@@ -1,2 +1,2 @@\n def total(a, b):\n-    return a - b\n+    return a + b\n"
WRITE = ToolCall("w", "write_file", '{"path": "sum.py", "content": "def total(a, b):"}')
RUN = ToolCall("r", "run_command", '{"argv": ["pytest", "-q"]}')
BOUND = BoundCommand(("pytest", "-q"), "/usr/bin/pytest", "/usr/bin/pytest", "/home/me/sum")
COMMAND = Preview("command", "run pytest -q", "pytest -q\nin /home/me/sum\nwith CI=1", BOUND)


def backend(**script) -> FakeToolBackend:
    tools = (
        fake_tool("read_file", Effect.READ),
        fake_tool("write_file", Effect.WRITE),
        fake_tool("run_command", Effect.RUN),
    )
    write = [ScriptedCall(ToolOutput(DIFF), Preview("diff", "write sum.py", DIFF))]
    run = [ScriptedCall(ToolOutput("1 passed", detail="exit status 0"), COMMAND)]
    return FakeToolBackend(FakeToolServer(tools=tools, script={"write_file": write, "run_command": run, **script}))


async def begins(user, question="Repair it."):
    await user.sees("ready")
    await user.asks("/tools on fake")
    await user.sees("3 tools on")
    await user.asks(question)


async def goes_to_the_question(user, key="tab"):
    await user.presses(key)
    await user.until(lambda: user.app.screen.query_one(ApprovalPanel).is_armed, "Its keys do not count")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_write_is_shown_as_a_diff_and_happens_once_allowed(open_app, size):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), size, tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?", "fake: write_file", "-    return a - b", "+    return a + b")
        await user.sees(
            "Tab, then a key decides",
            "Y allow once  T write_file in this chat",
            "S all of fake",
            "N deny",
            "X never",
        )
        await user.sees("waits for your decision", "Esc denies it and stops the answer")
        await goes_to_the_question(user)
        assert tools.server.called == []
        await user.presses("y")
        await user.sees("✓ write sum.py", "Done.", "ready")
        assert [name for name, _ in tools.server.called] == ["write_file"]
        await user.no_longer_sees("Allow write")


@pytest.mark.parametrize("text", ["yes", "y", "ty", "Yes, and test it!", "sx"])
async def test_what_is_typed_into_the_prompt_never_approves(open_app, text):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        await user.presses(*(each if each.isalpha() else "space" for each in text))
        await user.pilot.pause(0.4)
        assert tools.server.called == []
        await user.sees("Allow write sum.py?")
        assert user.app.screen.prompt.text.replace(" ", "") == "".join(filter(str.isalpha, text))


async def test_keys_in_one_burst_with_tab_are_for_the_prompt(open_app):
    """As a terminal without bracketed paste delivers a pasted table."""
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        for key in ("n", "o", "tab", "y", "e", "s", "tab", "t"):
            user.app.post_message(Key(key, key if len(key) == 1 else None))
        await user.until(lambda: user.app.screen.prompt.text == "noyest", "The keys are gone")
        assert tools.server.called == []
        await user.sees("Allow write sum.py?")


async def test_keys_of_a_burst_never_approve_although_a_busy_app_gets_to_them_late(open_app):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        late = Key("y", "y")
        await goes_to_the_question(user)
        user.app.post_message(late)
        await user.until(lambda: user.app.screen.prompt.text == "y", "The key is gone")
        assert tools.server.called == []


async def test_a_paste_never_approves(open_app):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.pastes("y")
        await user.until(lambda: user.app.screen.prompt.text == "y", "The paste is gone")
        assert tools.server.called == []


async def test_a_key_held_down_answers_one_question_only(open_app):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE, RUN), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("y", "y", "y")
        await user.sees("Allow run pytest -q?")
        await user.pilot.pause(0.4)
        assert [name for name, _ in tools.server.called] == ["write_file"]
        await user.sees("Allow run pytest -q?", "pytest -q", "in /home/me/sum", "with CI=1")
        assert "S all of" not in user.screen_text  # commands are never allowed by their server
        await goes_to_the_question(user, "alt+a")
        await user.presses("t")
        await user.sees("✓ run pytest -q · exit status 0", "Done.")
        assert user.app.screen.prompt.text == "yy"


async def test_a_denied_call_does_not_run_and_the_answer_goes_on(open_app):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("As you like.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("n")
        await user.sees("⊘ write sum.py · denied", "As you like.")
        assert tools.server.called == []


@pytest.mark.parametrize("has_focus", [False, True])
async def test_escape_denies_and_stops_the_answer(open_app, has_focus):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        if has_focus:
            await goes_to_the_question(user)
        await user.presses("escape")
        await user.no_longer_sees("Allow write sum.py?")
        await user.sees("■ write sum.py · cancelled", "ready")
        assert tools.server.called == []
        assert user.app.screen.prompt.has_focus


async def test_a_decision_for_the_chat_is_listed_and_can_be_removed(open_app):
    tools = backend()
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), (100, 40), tools=tools) as user:
        await begins(user)
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("x")
        await user.sees("denied", "Done.")
        await user.asks("/tools")
        await user.sees("Tools of this chat", "decided  refused: write_file of fake", "☑ run_command")
        await user.presses("end", "up", "delete")
        await user.no_longer_sees("decided  refused")


async def test_the_question_of_another_chat_says_so_and_leads_there(open_app, tmp_path):
    tools = backend()
    client = ScriptedClient(calling(WRITE), said("Done."))
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, repository=repository, tools=tools) as user,
    ):
        await begins(user, "Repair the sum.")
        await user.sees("Allow write sum.py?")
        await user.presses("ctrl+n")
        await user.sees("“Repair the sum.” asks whether a tool may run: Alt+A goes there")
        await user.no_longer_sees("Allow write sum.py?")
        await user.presses("alt+a")
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user, "alt+a")
        await user.presses("y")
        await user.sees("Done.")
        await user.no_longer_sees("asks whether")


async def test_a_question_is_announced_on_other_screens(open_app):
    gate = asyncio.Event()
    read = [ScriptedCall(gate=gate)]
    tools = backend(read_file=read)
    client = ScriptedClient(calling(ToolCall("a", "read_file", "{}"), WRITE), said("Done."))
    async with open_app(client, tools=tools, clock=QUICK_CLOCK) as user:
        await begins(user)
        await user.sees("▸ … call read_file")
        await user.presses("f10")
        await user.sees("Telemetry: none")
        gate.set()
        await user.sees("A tool asks for your permission")
        await user.presses("escape")
        await user.sees("Allow write sum.py?")


async def test_a_running_call_shows_how_far_it_is_and_what_it_writes(open_app):
    gate = asyncio.Event()
    progress = (ToolProgress("collecting", 1, 4), ToolProgress(output="one\ntwo\x1b[2J\nthree\nfour\n"))
    run = [ScriptedCall(ToolOutput("1 passed"), COMMAND, progress, gate=gate)]
    async with open_app(ScriptedClient(calling(RUN), said("Done.")), tools=backend(run_command=run)) as user:
        await begins(user)
        await user.sees("Allow run pytest -q?")
        await goes_to_the_question(user)
        await user.presses("y")
        await user.sees("… run pytest -q · 25% · collecting", "two[2J", "three", "four")
        gate.set()
        await user.sees("✓ run pytest -q", "Done.")
        await user.no_longer_sees("three")


async def test_quitting_withdraws_the_question_and_nothing_ran(open_app, tmp_path):
    tools = backend()
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(calling(WRITE)), repository=repository, tools=tools) as user,
    ):
        await begins(user)
        await user.sees("Allow write sum.py?")
        await user.presses("ctrl+q")
        await user.leaves()
    assert tools.server.called == []
    assert tools.server.is_closed
    async with SqliteChatRepository(tmp_path) as repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.sees("■ write sum.py · cancelled")


async def test_a_long_question_is_scrolled_in_its_panel(open_app):
    text = "\n".join(f"+line {number}" for number in range(200))
    write = [ScriptedCall(preview=Preview("diff", "write long.txt", f"--- a/x\n+++ b/x\n@@ -0,0 +1,200 @@\n{text}"))]
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=backend(write_file=write)) as user:
        await begins(user)
        await user.sees("Allow write long.txt?", "+line 0", "N deny")
        assert "+line 150" not in user.screen_text
        await goes_to_the_question(user)
        await user.presses(*["pagedown"] * 30)
        await user.sees("▸ arguments: O shows them", "N deny")
        await user.presses("o", *["pagedown"] * 30)
        await user.sees("arguments:", '"path": "sum.py"', "N deny")
        await user.presses("o")
        await user.no_longer_sees('"path": "sum.py"')
        assert user.app.screen.transcript.size.height >= 3


async def test_the_list_of_chats_says_which_one_asks(open_app, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Half ", "whole."), calls=(WRITE,), pause_after=1), said("Done."))
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(client, repository=repository, tools=backend()) as user,
    ):
        await begins(user)
        await user.sees("Half")
        await user.presses("ctrl+n", "f5")
        await user.sees("Repair it.", "● answering")
        client.resume()
        await user.sees("● asking")
        await user.no_longer_sees("● answering")
        await user.presses("enter")
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("y")
        await user.sees("Done.")
        await user.presses("f5")
        await user.sees("Repair it.")
        await user.no_longer_sees("● asking")
