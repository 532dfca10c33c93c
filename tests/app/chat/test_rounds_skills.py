"""A scripted model is told of a skill, reads it when it needs it, and does what it says with the tools that ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tools.approval import Decision, ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.tool import ToolOutcome
from tests.app.chat.tool_chats import ask, call, calling, decide, opened_chat, said
from tests.app.client.scripted_client import ScriptedClient


async def test_a_skill_is_read_without_a_question_and_what_it_says_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config" / "config.toml"))
    skill, project = tmp_path / "config" / "skills" / "notes", tmp_path / "project"
    skill.mkdir(parents=True)
    project.mkdir()
    (skill / "SKILL.md").write_text(
        "---\nname: notes\ndescription: Writes notes.\n---\nWrite notes.md as template.md says.\n"
    )
    (skill / "template.md").write_text("# Notes\n")
    client = ScriptedClient(
        calling(call(1, "read_skill", name="notes")),
        calling(call(2, "read_skill", name="notes", file="template.md")),
        calling(call(3, "write_file", path="notes.md", content="# Notes\n")),
        said("Written."),
    )
    runner = tool_runner(tmp_path / "data", folder=project)
    tools = ToolSettings(enabled=("skills", "files"), folders=(str(project),))
    async with opened_chat(client, runner, None, tools) as chat:
        questions = decide(chat, Decision.ONCE)
        branch = await ask(chat, "Write the notes.")
    await runner.close()
    assert [question.tool.name for question in questions] == ["write_file"]
    assert [message.result.outcome for message in branch if message.result] == [ToolOutcome.DONE] * 3
    offered = {tool.name: tool for tool in client.options[0].tools}
    assert "- notes: Writes notes." in offered["read_skill"].description
    assert "template.md says" not in offered["read_skill"].description
    assert "Write notes.md as template.md says." in client.requests[1][-1].content
    assert client.requests[2][-1].content == "# Notes\n"
    assert (project / "notes.md").read_text() == "# Notes\n"
