"""Answers that call tools: rounds of calls and results until an answer calls nothing, and what interrupts them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import ChatSettings, Message, MessageContent, MessageState
from app.chat.events import ChatEvent, Note
from app.chat.rounds import RoundLimitError
from app.chat.session import OpenChat
from app.chat.store.chat_store import ChatStore
from app.chat.turns import NOT_RUN
from app.protocol.status import Occupancy
from app.tools.approval import Decision, ToolSettings
from app.tools.tool import ToolOutcome, ToolOutput, ToolProgress
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, StorageError, UserError
from tests.app.chat.tool_chats import (
    TOOLS,
    WRITTEN,
    ask,
    backend_of,
    call,
    calling,
    decide,
    opened_chat,
    roles,
    said,
    unbatched,
    until,
)
from tests.app.client.scripted_client import COMPLETED, READY, ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall

__all__ = ["unbatched"]

TWO_ROUNDS = (calling(call(1), call(2), text="Let me see.", thoughts=("Hm.",)), calling(call(3)), said("Done."))


async def test_calls_run_in_order_until_an_answer_calls_nothing():
    client, backend = ScriptedClient(*TWO_ROUNDS), backend_of()
    async with opened_chat(client, backend) as chat:
        branch = await ask(chat)
        assert roles(branch) == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
        assert [message.state for message in branch] == [MessageState.FINISHED] * 7
        assert (branch[-1].content, chat.is_answering, chat.activity) == ("Done.", False, "")
        assert branch[1].calls == (call(1), call(2))
        assert branch[1].stats["finish_reason"] == "tool_calls"
        assert [m.result.outcome for m in branch if m.result] == [ToolOutcome.DONE] * 3
        assert [m.result.call_id for m in branch if m.result] == ["c1", "c2", "c3"]
    assert [tool.name for tool in client.options[0].tools] == ["read", "write", "run"]
    assert [turn.role for turn in client.requests[2]] == roles(branch)[:-1]
    assert client.requests[1][1].reasoning == "Hm."
    assert [turn.content for turn in client.requests[1][2:]] == ["text", "text"]


async def test_a_chat_without_tools_offers_none():
    client = ScriptedClient(said("Hello."))
    async with opened_chat(client, backend_of(), tools=ToolSettings()) as chat:
        await ask(chat)
    assert client.options[0].tools == ()


async def test_a_chat_with_a_prompt_template_offers_none():
    client = ScriptedClient(said("Hello."))
    async with opened_chat(client, backend_of()) as chat:
        chat.conversation.settings = ChatSettings(options={"template": "chatml"}, tools=TOOLS)
        await ask(chat)
    assert (client.options[0].tools, len(client.prompts)) == ((), 1)


async def test_a_server_that_is_switched_on_and_fails_is_said_once():
    error = UserError("It answers 401.", "Log in: localllm mcp login fake")
    backend = FakeToolBackend(FakeToolServer(start_error=error))
    async with opened_chat(ScriptedClient(said("Hello."), said("Again.")), backend) as chat:
        notes = []

        async def draw(event: ChatEvent) -> None:
            notes.extend([event.text] if isinstance(event, Note) else [])

        chat.view = draw
        await ask(chat)
        await ask(chat)
        assert notes == [str(error)]
        assert chat.conversation.branch[-1].content == "Again."


async def test_every_round_is_on_the_disk_and_read_again(tmp_path: Path):
    async with opened_chat(ScriptedClient(*TWO_ROUNDS), backend_of(), tmp_path) as chat:
        branch = await ask(chat)
    with ChatStore(tmp_path) as store:
        (stored,) = store.chats.page()
        assert store.transcripts.read(stored.id).branch == branch
        assert stored.settings.tools == TOOLS


async def test_a_call_is_stored_before_it_runs_and_its_changes_before_they_are_made(tmp_path: Path):
    gate = asyncio.Event()
    backend = backend_of(write=[ScriptedCall(gate=gate, changes=(WRITTEN,))])
    async with opened_chat(ScriptedClient(calling(call(1, "write")), said("Done.")), backend, tmp_path) as chat:
        decide(chat, Decision.ONCE)
        chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: any(m.result and m.result.changes for m in chat.conversation.branch))
        with ChatStore(tmp_path) as store:
            running = store.transcripts.read(1).branch[-1]
        assert (running.role, running.state) == ("tool", MessageState.PARTIAL)
        assert running.result.outcome is ToolOutcome.RUNNING
        assert running.result.changes == (WRITTEN,)
        gate.set()
        await chat.wait()


async def test_a_tool_that_fails_ends_no_answer_and_the_model_is_told():
    failing = [
        ScriptedCall(error=ModelFileError("No such file.", "Name another.")),
        ScriptedCall(ToolOutput("no", True)),
    ]
    client = ScriptedClient(calling(call(1)), calling(call(2)), said("Sorry."))
    async with opened_chat(client, backend_of(read=failing)) as chat:
        branch = await ask(chat)
        assert branch[-1].content == "Sorry."
        assert [m.result.outcome for m in branch if m.result] == [ToolOutcome.FAILED] * 2
        assert not chat.conversation.errors
    assert client.requests[1][-1].content == "No such file. Name another."


async def test_a_tool_that_nobody_offers_is_an_error_for_the_model_only():
    client = ScriptedClient(calling(call(1, "teleport")), said("Sorry."))
    async with opened_chat(client, backend_of()) as chat:
        branch = await ask(chat)
    assert branch[2].result.outcome is ToolOutcome.FAILED
    assert branch[3].content == "Sorry."


async def test_nothing_runs_while_nobody_answers_and_a_denial_is_told(tmp_path: Path):
    client, backend = ScriptedClient(calling(call(1, "run")), said("As you like.")), backend_of()
    async with opened_chat(client, backend, tmp_path) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: chat.approvals.questions)
        assert (backend.server.called, chat.has_news, chat.activity) == ([], True, "calling")
        chat.approvals.answer(chat.approvals.questions[0], Decision.NEVER)
        await chat.wait()
        branch = chat.conversation.branch
    assert (branch[2].result.outcome, backend.server.called) == (ToolOutcome.DENIED, [])
    with ChatStore(tmp_path) as store:
        (rule,) = store.chats.get(1).settings.tools.rules
    assert (rule.tool, rule.is_denied) == ("run", True)


async def test_a_permission_for_the_chat_counts_for_the_next_call():
    client, backend = ScriptedClient(calling(call(1, "run"), call(2, "run")), said("Done.")), backend_of()
    async with opened_chat(client, backend) as chat:
        questions = decide(chat, Decision.TOOL)
        await ask(chat)
        assert len(questions) == 1
    assert len(backend.server.called) == 2


async def test_stopping_a_running_call_stores_it_as_cancelled_and_the_chat_stays_usable(tmp_path: Path):
    backend = backend_of(read=[ScriptedCall(gate=asyncio.Event()), ScriptedCall(ToolOutput("text"))])
    client = ScriptedClient(calling(call(1), call(2)), said("Well."))
    async with opened_chat(client, backend, tmp_path) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await backend.server.began.wait()
        await chat.stop()
        stopped = chat.conversation.branch[-1]
        assert (stopped.result.outcome, stopped.state) == (ToolOutcome.CANCELLED, MessageState.FINISHED)
        assert (backend.server.n_cancelled, chat.conversation.running_id) == (1, None)
        branch = await ask(chat, "And now?")
        assert roles(branch) == ["user", "assistant", "tool", "user", "assistant"]
    contents = [turn.content for turn in client.requests[1]]
    assert "stopped this call in the middle" in contents[2]
    assert contents[3] == NOT_RUN
    with ChatStore(tmp_path) as store:
        assert store.messages.of(1)[2] == stopped


async def test_stopping_while_the_person_is_asked_says_that_nothing_ran():
    client, backend = ScriptedClient(calling(call(1, "run"))), backend_of()
    async with opened_chat(client, backend) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: chat.approvals.questions)
        await chat.stop()
        assert chat.approvals.questions == ()
        last = chat.conversation.branch[-1]
    assert last.result.outcome is ToolOutcome.CANCELLED
    assert "did not run" in last.content


async def test_continuing_after_a_stop_runs_the_calls_that_were_not_begun_and_no_other():
    backend = backend_of(read=[ScriptedCall(gate=asyncio.Event()), ScriptedCall(ToolOutput("text"))])
    client = ScriptedClient(calling(call(1), call(2)), said("Done."))
    async with opened_chat(client, backend) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await backend.server.began.wait()
        await chat.stop()
        unfinished = chat.conversation.unfinished_answer
        assert unfinished is not None
        chat.continue_answer(unfinished)
        await chat.wait()
        branch = chat.conversation.branch
        assert roles(branch) == ["user", "assistant", "tool", "tool", "assistant"]
        assert [m.result.outcome for m in branch if m.result] == [ToolOutcome.CANCELLED, ToolOutcome.DONE]
        assert chat.conversation.unfinished_answer is None


async def test_what_a_kill_left_running_is_not_run_again_and_the_model_is_told(tmp_path: Path):
    backend = backend_of(read=[ScriptedCall(ToolOutput("text"))])
    async with opened_chat(ScriptedClient(calling(call(1), call(2)), said("Done.")), backend, tmp_path) as chat:
        branch = await ask(chat)
    with ChatStore(tmp_path) as store:  # as if the process had died in the middle of the first call
        first = branch[2]
        store.messages.remove(1, branch[3].id)
        with store._database.writing() as connection:
            connection.execute("UPDATE messages SET state = 'partial', content = '' WHERE id = ?", (first.id,))
            text = '{"call_id": "c1", "tool": "read", "outcome": "running"}'
            connection.execute("UPDATE messages SET result = ? WHERE id = ?", (text, first.id))
    client = ScriptedClient(said("Strange."))
    async with opened_chat(client, backend, tmp_path) as chat:
        unfinished = chat.conversation.unfinished_answer
        assert unfinished is not None
        chat.continue_answer(unfinished)
        await chat.wait()
        assert roles(chat.conversation.branch) == ["user", "assistant", "tool", "tool", "assistant"]
    assert [turn.content for turn in client.requests[0]][2:] == [
        "The call was cut off in the middle: what it did is not known.",
        "text",
    ]
    assert len(backend.server.called) == 3


async def test_the_limit_of_rounds_asks_the_person_who_may_let_it_go_on():
    endless = [calling(call(number, n=number)) for number in range(1, 8)]
    client = ScriptedClient(*endless, said("Done."))
    async with opened_chat(client, backend_of(), tools=ToolSettings(("fake",), max_rounds=3)) as chat:
        await ask(chat)
        last = chat.conversation.branch[-1]
        assert (last.role, len(client.requests)) == ("tool", 3)
        assert isinstance(chat.conversation.errors[last.id], RoundLimitError)
        assert "3 rounds" in str(chat.conversation.errors[last.id])
        chat.continue_answer(last)
        await chat.wait()
        assert len(client.requests) == 6
        assert list(chat.conversation.errors) == [chat.conversation.leaf_id]
        chat.continue_answer(chat.conversation.branch[-1])
        await chat.wait()
        assert chat.conversation.branch[-1].content == "Done."
        assert not chat.conversation.errors


async def test_a_call_that_repeats_itself_is_noticed_and_stopped():
    client = ScriptedClient(calling(call(1)))
    async with opened_chat(client, backend_of()) as chat:
        await ask(chat)
        texts = [message.content for message in chat.conversation.branch if message.role == "tool"]
        assert "Let it go on?" in str(chat.conversation.errors[chat.conversation.leaf_id])
    assert [("times in a row" in text) for text in texts] == [False, False, True, True, True, True]


async def test_waiting_questions_wait_for_the_whole_answer_and_after_a_limit_for_the_person():
    gate = asyncio.Event()
    backend = backend_of(read=[ScriptedCall(gate=gate), ScriptedCall(ToolOutput("text"))])
    client = ScriptedClient(calling(call(1)), said("First."), calling(call(2)), said("never"))
    async with opened_chat(client, backend, tools=ToolSettings(("fake",), max_rounds=1)) as chat:
        chat.conversation.settings = ChatSettings(tools=ToolSettings(("fake",), max_rounds=2))
        chat.ask(MessageContent(role="user", content="one"))
        await backend.server.began.wait()
        chat.ask(MessageContent(role="user", content="two"))
        chat.ask(MessageContent(role="user", content="three"))
        chat.conversation.settings = ChatSettings(tools=ToolSettings(("fake",), max_rounds=1))
        gate.set()
        await chat.wait()
        assert [question.content for question in chat.queue] == ["two", "three"]


async def test_an_engine_that_dies_between_rounds_leaves_what_was_done_and_continue_goes_on():
    client = ScriptedClient(calling(call(1)), ScriptedReply(ending=EngineError("It died.")), said("Done."))
    async with opened_chat(client, backend_of()) as chat:
        branch = await ask(chat)
        assert roles(branch) == ["user", "assistant", "tool", "assistant"]
        assert isinstance(chat.conversation.errors[branch[-1].id], EngineError)
        unfinished = chat.conversation.unfinished_answer
        assert unfinished is not None
        chat.continue_answer(unfinished)
        await chat.wait()
        after = chat.conversation.branch
    assert roles(after) == ["user", "assistant", "tool", "assistant"]
    assert (after[-1].content, after[2]) == ("Done.", branch[2])


async def test_an_answer_stopped_in_the_middle_of_a_call_runs_nothing_and_begins_the_call_again():
    cut = ScriptedReply(deltas=("Let me see.",), calls=(call(1),), pause_after=2)
    client, backend = ScriptedClient(cut, calling(call(2)), said("Done.")), backend_of()
    async with opened_chat(client, backend) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: chat.conversation.branch and chat.conversation.branch[-1].calls)
        await chat.stop()
        unfinished = chat.conversation.unfinished_answer
        assert (unfinished.calls[0].name, unfinished.state) == ("read", MessageState.PARTIAL)
        chat.continue_answer(unfinished)
        await chat.wait()
        branch = chat.conversation.branch
    assert roles(branch) == ["user", "assistant", "tool", "assistant"]
    assert (branch[1].content, branch[1].calls) == ("Let me see.", (call(2),))
    assert [turn.content for turn in client.requests[1]] == ["Do it.", "Let me see."]
    assert len(backend.server.called) == 1


async def test_calls_of_an_answer_cut_at_its_limit_do_not_run():
    cut = replace(calling(call(1), text="Let me see."), ending=replace(COMPLETED, finish_reason="length"))
    backend = backend_of()
    async with opened_chat(ScriptedClient(cut), backend) as chat:
        branch = await ask(chat)
    assert roles(branch) == ["user", "assistant"]
    assert (branch[1].calls, backend.server.called) == ((call(1),), [])


async def test_regenerating_makes_a_version_of_the_first_answer_of_the_rounds():
    client = ScriptedClient(calling(call(1)), said("Done."), said("Without tools."))
    async with opened_chat(client, backend_of()) as chat:
        first = await ask(chat)
        assert chat.answer_again()
        await chat.wait()
        again = chat.conversation.branch
        assert roles(again) == ["user", "assistant"]
        entry = chat.conversation.entries()[-1]
        assert (entry.version, entry.n_versions) == (2, 2)
        await chat.step_to_version(again[-1].id, -1)
        assert chat.conversation.branch == first


async def test_progress_and_output_are_shown_while_a_call_runs():
    gate = asyncio.Event()
    progress = (ToolProgress("half", 1, 2), ToolProgress(output="line 1\n"), ToolProgress(output="line 2\n"))
    backend = backend_of(read=[ScriptedCall(gate=gate, progress=progress)])
    async with opened_chat(ScriptedClient(calling(call(1)), said("Done.")), backend) as chat:
        chat.ask(MessageContent(role="user", content="Do it."))
        await backend.server.began.wait()
        (entry,) = (each for each in chat.conversation.entries() if each.is_running)
        live = chat.conversation.live[entry.message.id]
        assert (entry.message.role, live.progress, live.output) == ("tool", progress[0], "line 1\nline 2\n")
        gate.set()
        await chat.wait()
        assert chat.conversation.live == {}


class _SlowView:
    def __init__(self, chat: OpenChat) -> None:
        self.shown: list[Message] = []
        self._chat = chat
        self._is_showing = False

    async def draw(self, event: ChatEvent) -> None:
        assert not self._is_showing
        self._is_showing = True
        await asyncio.sleep(0.01)
        self._is_showing = False
        self.shown.append(self._chat.conversation.branch[-1])


async def test_what_changes_is_drawn_one_after_the_other_and_last_as_it_ended():
    progress = tuple(ToolProgress(output=f"line {number}\n") for number in range(50))
    backend = backend_of(read=[ScriptedCall(progress=progress)])
    async with opened_chat(ScriptedClient(calling(call(1)), said("Done.")), backend) as chat:
        view = _SlowView(chat)
        chat.view = view.draw
        branch = await ask(chat)
    tools = [message for message in view.shown if message.role == "tool"]
    assert (tools[0].state, tools[-1]) == (MessageState.PARTIAL, branch[2])


async def test_a_result_that_cannot_be_stored_is_shown_as_such_and_ends_the_rounds():
    client, backend = ScriptedClient(calling(call(1), call(2)), said("Done.")), backend_of()
    async with opened_chat(client, backend) as chat:

        async def fail(*_args: object) -> None:
            raise StorageError("The disk is full.", "Free some space.")

        working, chat.stored.finish_call = chat.stored.finish_call, fail
        branch = await ask(chat)
        assert roles(branch) == ["user", "assistant", "tool"]
        assert isinstance(chat.conversation.errors[branch[-1].id], StorageError)
        assert (chat.conversation.running_id, chat.activity) == (None, "")
        chat.stored.finish_call = working
        chat.continue_answer(chat.conversation.unfinished_answer)
        await chat.wait()
        assert chat.conversation.branch[-1].content == "Done."
        assert not chat.conversation.errors


async def test_the_title_is_generated_once_the_rounds_have_ended(tmp_path: Path):
    idle = replace(READY, id="llama", occupancy=Occupancy(n_running=0, n_waiting=0, n_cells_used=0, n_cells=2048))
    client = ScriptedClient(calling(call(1)), said("Done."), said("Soup of leeks"), model=idle)
    async with opened_chat(client, backend_of(), tmp_path) as chat:
        chat.pinned_model = "llama"
        await ask(chat)
        await chat._titling
    with ChatStore(tmp_path) as store:
        assert store.chats.page()[0].title == "Soup of leeks"
    assert client.options[-1].tools == client.options[0].tools != ()
