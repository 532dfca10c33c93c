"""A scripted model searches the folders that a person added, and answers with what it read there."""

from __future__ import annotations

from pathlib import Path

from app.knowledge.reading import read_folder
from app.knowledge.store import KnowledgeStore
from app.tools.approval import ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.tool import ToolOutcome
from tests.app.chat.tool_chats import ask, call, calling, decide, opened_chat, said
from tests.app.client.scripted_client import ScriptedClient


async def test_an_answer_calls_the_search_and_the_next_request_has_the_passages(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "soup.md").write_text("# Broth\n\nIt simmers for three hours.")
    with KnowledgeStore(tmp_path) as store:
        list(read_folder(store, store.add_folder(folder)))
    client = ScriptedClient(calling(call(1, "search_knowledge", query="how long does broth simmer")), said("3 hours."))
    runner = tool_runner(tmp_path)
    async with opened_chat(client, runner, tmp_path, ToolSettings(enabled=("knowledge",))) as chat:
        questions = decide(chat)
        branch = await ask(chat, "How long?")
    await runner.close()
    assert questions == []
    (result,) = [message for message in branch if message.result]
    assert result.result is not None
    assert result.result.outcome is ToolOutcome.DONE
    assert f"[1] {folder / 'soup.md'} (Broth)\n```\n# Broth\n\nIt simmers for three hours.\n```" in result.content
    assert client.requests[-1][-1].content == result.content
    assert [tool.name for tool in client.options[-1].tools] == ["search_knowledge"]
