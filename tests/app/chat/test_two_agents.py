"""Two agents in one folder, each in a chat of its own: neither undoes what the other one wrote, and none is stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tools.approval import Decision, ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.tool import ToolOutcome
from quantizer.system.errors import StorageError
from tests.app.chat.tool_chats import ask, call, calling, decide, opened_chat, said
from tests.app.client.scripted_client import ScriptedClient

BEFORE = "one\ntwo\nthree\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.txt").write_text(BEFORE)
    return made


def _reads_then(*later: object) -> tuple[object, ...]:
    return (calling(call(1, "read_file", path="a.txt")), said("Read."), *later)


async def test_a_whole_file_made_of_an_old_reading_is_refused_and_written_after_the_new_one(
    tmp_path: Path, folder: Path
) -> None:
    tools = ToolSettings(enabled=("files",), folders=(str(folder),))
    first = ScriptedClient(
        *_reads_then(
            calling(call(2, "write_file", path="a.txt", content="one\ntwo\nTHREE\n")),
            calling(call(3, "read_file", path="a.txt")),
            calling(call(4, "write_file", path="a.txt", content="ONE\ntwo\nTHREE\n")),
            said("Done."),
        )
    )
    second = ScriptedClient(calling(call(1, "edit_file", path="a.txt", old_text="one", new_text="ONE")), said("Done."))
    runner, other = tool_runner(tmp_path / "data"), tool_runner(tmp_path / "data")
    async with opened_chat(first, runner, None, tools) as chat, opened_chat(second, other, None, tools) as other_chat:
        await ask(chat, "Read it.")
        decide(other_chat, Decision.ONCE)
        await ask(other_chat, "ONE!")
        questions = decide(chat, Decision.ONCE)
        branch = await ask(chat, "THREE!")
    results = [message for message in branch if message.result]
    outcomes = [message.result.outcome for message in results if message.result]
    assert outcomes == [ToolOutcome.DONE, ToolOutcome.FAILED, ToolOutcome.DONE, ToolOutcome.DONE]
    assert "a.txt was changed since you read it." in results[1].content
    assert len(questions) == 1
    assert (folder / "a.txt").read_text() == "ONE\ntwo\nTHREE\n"
    await runner.close()
    await other.close()


async def test_an_edit_keeps_what_the_other_one_wrote_and_does_not_count_as_reading_it(
    tmp_path: Path, folder: Path
) -> None:
    tools = ToolSettings(enabled=("files",), folders=(str(folder),))
    first = ScriptedClient(
        *_reads_then(
            calling(call(2, "edit_file", path="a.txt", old_text="three", new_text="THREE")),
            calling(call(3, "write_file", path="a.txt", content="one\ntwo\nTHREE\n")),
            said("Done."),
        )
    )
    runner = tool_runner(tmp_path / "data")
    async with opened_chat(first, runner, None, tools) as chat:
        await ask(chat, "Read it.")
        (folder / "a.txt").write_text("ONE\ntwo\nthree\n")  # the other agent, or the person
        decide(chat, Decision.ONCE, Decision.ONCE)
        branch = await ask(chat, "THREE!")
    outcomes = [message.result.outcome for message in branch if message.result]
    assert outcomes == [ToolOutcome.DONE, ToolOutcome.DONE, ToolOutcome.FAILED]
    assert (folder / "a.txt").read_text() == "ONE\ntwo\nTHREE\n"
    await runner.close()


async def test_own_writes_and_an_undo_refuse_no_write(tmp_path: Path, folder: Path) -> None:
    tools = ToolSettings(enabled=("files",), folders=(str(folder),))
    client = ScriptedClient(
        calling(call(1, "write_file", path="a.txt", content="first\n")),
        calling(call(2, "write_file", path="a.txt", content="second\n")),
        said("Done."),
        calling(call(3, "write_file", path="a.txt", content="third\n")),
        said("Done."),
    )
    runner = tool_runner(tmp_path / "data")
    async with opened_chat(client, runner, None, tools) as chat:
        decide(chat, Decision.ONCE, Decision.ONCE, Decision.ONCE)
        await ask(chat, "Write.")
        await chat.undo_step()
        await chat.undo_step()
        assert (folder / "a.txt").read_text() == BEFORE
        await ask(chat, "Write again.")
    assert (folder / "a.txt").read_text() == "third\n"
    await runner.close()


async def test_an_undo_takes_back_no_work_of_the_other_chat(tmp_path: Path, folder: Path) -> None:
    tools = ToolSettings(enabled=("files",), folders=(str(folder),))
    first = ScriptedClient(calling(call(1, "edit_file", path="a.txt", old_text="one", new_text="ONE")), said("Done."))
    second = ScriptedClient(calling(call(1, "edit_file", path="a.txt", old_text="two", new_text="TWO")), said("Done."))
    runner, other = tool_runner(tmp_path / "data"), tool_runner(tmp_path / "data")
    async with opened_chat(first, runner, None, tools) as chat, opened_chat(second, other, None, tools) as other_chat:
        decide(chat, Decision.ONCE)
        decide(other_chat, Decision.ONCE)
        await ask(chat, "ONE!")
        await ask(other_chat, "TWO!")
        with pytest.raises(StorageError, match="was changed since"):
            await chat.undo_step()
        assert (folder / "a.txt").read_text() == "ONE\nTWO\nthree\n"
        await other_chat.undo_step()
        assert (folder / "a.txt").read_text() == "ONE\ntwo\nthree\n"
        await chat.undo_step()
    assert (folder / "a.txt").read_text() == BEFORE
    await runner.close()
    await other.close()
