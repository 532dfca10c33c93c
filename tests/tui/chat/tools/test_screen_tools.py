"""/tools, by words and in its list; /undo and /redo in the full screen."""

from __future__ import annotations

import pytest

from app.chat.repository import SqliteChatRepository
from app.protocol.chat import ToolCall
from app.tools.builtin.skills import SkillServer
from app.tools.runner import ToolRunner
from app.tools.tool import FileChange, Preview, ToolOutput
from app.tools.trust import trusted_folders
from tests.app.chat.tool_chats import calling, said
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.fake import ScriptedCall
from tests.tui.chat.tools.test_screen_approval import DIFF, WRITE, backend, goes_to_the_question

pytestmark = pytest.mark.slow

CHANGE = FileChange("/home/me/sum.py", "a" * 64, "b" * 64)


async def test_tools_are_switched_by_words_and_kept_with_the_chat(open_app, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    client = ScriptedClient()
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, (100, 40), repository, tools=backend()) as user,
    ):
        await user.sees("ready")
        await user.asks("/tools on read_file, fake/write_file")
        await user.sees("2 tools on, 200 tokens of every prompt", "tools: fake")
        await user.asks("/tools folder project")
        await user.sees("Tools read and write in:", "/project")
        await user.asks("/tools rounds 7")
        await user.sees("at most 7 rounds")
        await user.asks("/tools off write_file")
        await user.sees("1 tool on, 100 tokens")
        await user.asks("/tools fly")
        await user.sees("/tools fly is not known.")
        await user.presses("ctrl+u")
        await user.asks("/tools on nothing")
        await user.sees("There are no tools called nothing.", "Servers of tools: fake.")
        await user.presses("ctrl+u")
        await user.asks("Hello?")
        await user.sees("Hello.", "ready")
    assert [tool.name for tool in client.options[0].tools] == ["read_file"]
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(), (100, 40), repository, tools=backend()) as user,
    ):
        await user.sees("Hello.", "tools: fake")
        await user.asks("/tools")
        await user.sees("☑ read_file", "☐ write_file", "folder   /", "at most 7")


async def test_a_project_s_skills_are_listed_once_its_folder_is_trusted(open_app, tmp_path, monkeypatch):
    skill = tmp_path / "project" / ".agents" / "skills" / "soup"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: soup\ndescription: Cooks soup.\n---\nBoil water.\n")
    (tmp_path / "project" / "AGENTS.md").write_text("Always use leeks.")
    monkeypatch.chdir(tmp_path / "project")
    skills = SkillServer(tmp_path / "skills", tmp_path / "project", trusted_folders())
    client = ScriptedClient()
    async with open_app(client, (160, 40), tools=ToolRunner((skills,), lambda _: ())) as user:
        await user.sees("ready")
        await user.asks("/tools")
        await user.sees("☐ skills  built in", "AGENTS.md and skills not used", "To use them:", "trust /")
        await user.presses("escape")
        await user.asks("/tools trust .")
        await user.sees("are used where")
        await user.asks("/tools on skills")
        await user.sees("1 tool on", "tools: skills")
        await user.asks("/tools")
        await user.sees("soup (of this folder): Cooks soup.", "AGENTS.md (17 characters) of", "☑ read_skill")
        await user.presses("escape")
        await user.asks("Hello?")
        await user.sees("Hello.", "ready")
        await user.asks("/tools distrust .")
        await user.sees("are not used.")
    (tool,) = client.options[0].tools
    assert "- soup: Cooks soup." in tool.description
    assert tool.description.endswith("Always use leeks.")
    assert not trusted_folders().has(tmp_path / "project")


async def test_tools_and_a_system_prompt_count_in_the_context_as_soon_as_they_are_set(open_app):
    async with open_app(ScriptedClient(said("Hello."), said("Again.")), (100, 40), tools=backend()) as user:
        await user.sees("ready", "0 of 2k")
        await user.asks("/tools on fake")
        await user.sees("≈300 of 2k")
        await user.asks("/tools off write_file")
        await user.sees("≈200 of 2k")
        await user.asks("Hello?")
        await user.sees("Hello.", " 52 of 2k")  # as the engine counted it, with the two
        await user.asks("/tools on write_file")
        await user.sees("≈152 of 2k")
        await user.asks("/tools off all")
        await user.sees("≈0 of 2k")  # the scripted engine counts other tokens for an answer than for its tools
        await user.asks("/tools on read_file run_command")
        await user.sees(" 52 of 2k")  # which is what was counted
        await user.asks(f"/system {'Be brief. ' * 40}")
        await user.until(lambda: "≈152" in user.screen_text, "the system prompt is not counted")
        await user.asks("/system clear")
        await user.sees(" 52 of 2k")


async def test_tools_of_a_chat_that_is_reopened_were_counted_with_its_answers(open_app, tmp_path):
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(), (100, 40), repository, tools=backend()) as user,
    ):
        await user.sees("ready")
        await user.asks("/tools on read_file")
        await user.sees("≈100 of 2k")
        await user.asks("Hello?")
        await user.sees("Hello.", " 52 of 2k")
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(ScriptedClient(), (100, 40), repository, tools=backend()) as user,
    ):
        await user.sees("Hello.", " 52 of 2k", "ready")
        await user.asks("/tools on write_file")
        await user.until(lambda: "≈1" in user.screen_text, "the second tool is not counted")
        await user.asks("/tools off write_file")
        await user.sees(" 52 of 2k")


async def test_the_list_switches_by_space_and_takes_folders(open_app, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    async with open_app(ScriptedClient(), (100, 40), tools=backend()) as user:
        await user.sees("ready")
        await user.asks("/tools")
        await user.sees("Tools of this chat", "☐ fake  a test", "No tools are on in this chat.", "3 tools")
        await user.presses("space")
        await user.sees("☑ fake", "3 tools on, 300 tokens of every prompt")
        await user.presses("down", "space")
        await user.sees("☐ read_file", "2 tools on", "Reads in the folders of this chat.")
        await user.presses("a")
        await user.sees("Folder for tools")
        await user.types("proj")
        await user.presses("right", "enter")
        await user.sees("folder   /")
        await user.presses("end", "space")
        await user.sees("Rounds of calls")
        await user.presses("backspace", "backspace", "9", "enter")
        await user.sees("at most 9 an answer")
        await user.presses("escape")
        await user.sees("tools: fake")


async def test_the_last_step_is_taken_back_and_done_again(open_app, tmp_path):
    write = [ScriptedCall(ToolOutput(DIFF), Preview("diff", "write sum.py", DIFF), changes=(CHANGE,))]
    tools = backend(write_file=write)
    client = ScriptedClient(calling(ToolCall("a", "read_file", "{}")), calling(WRITE), said("Done."))
    async with open_app(client, (80, 40), SqliteChatRepository(tmp_path), tools=tools) as user:
        await user.sees("ready")
        await user.asks("/tools on fake")
        await user.asks("Repair it.")
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("y")
        await user.sees("Done.", "ready")
        await user.asks("/undo")
        await user.sees("Took back: write sum.py. As before: /home/me/sum.py. /redo does it again.")
        await user.no_longer_sees("Done.")
        assert tools.undone == [CHANGE]
        await user.asks("/redo")
        await user.sees("It is done again.", "Done.", "✓ write sum.py")
        await user.asks("/undo")
        await user.no_longer_sees("Done.")
        await user.asks("/undo")
        await user.sees("Took back: call read_file.")
        await user.asks("/undo")
        await user.sees("Took the last question and its answer back.")
        await user.until(lambda: user.app.screen.prompt.text == "Repair it.", "The question is not in the prompt")


async def test_a_file_that_was_changed_since_stays_and_so_does_the_step(open_app):
    write = [ScriptedCall(ToolOutput(DIFF), Preview("diff", "write sum.py", DIFF), changes=(CHANGE,))]
    tools = backend(write_file=write)
    tools.changed_since.add(CHANGE.path)
    async with open_app(ScriptedClient(calling(WRITE), said("Done.")), tools=tools) as user:
        await user.sees("ready")
        await user.asks("/undo")
        await user.sees("There is nothing to take back.")
        await user.asks("/tools on fake")
        await user.asks("Repair it.")
        await user.sees("Allow write sum.py?")
        await goes_to_the_question(user)
        await user.presses("y")
        await user.sees("Done.", "ready")
        await user.asks("/undo")
        await user.sees("/home/me/sum.py was changed since.", "Done.")


async def test_the_model_waits_for_the_person_after_the_rounds(open_app):
    client = ScriptedClient(calling(ToolCall("a", "read_file", "{}")), said("Done."))
    async with open_app(client, tools=backend()) as user:
        await user.sees("ready")
        await user.asks("/tools on fake")
        await user.asks("/tools rounds 1")
        await user.asks("Go.")
        await user.sees("The model waits for you", "Let it go on?", "Ctrl+G lets it go on")
        await user.presses("ctrl+g")
        await user.sees("Done.")
