"""A scripted model searches the web by services on loopback, and its answer shows where it is from."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.conversation import cited_sources
from app.tools.approval import Decision, ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.builtin.web import WebServer
from app.tools.runner import ToolRunner
from app.tools.tool import ToolOutcome
from tests.app.chat.tool_chats import ask, call, calling, decide, opened_chat, said
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.builtin.search_services import (
    KEY,
    FakeService,
    brave_answer,
    local_brave,
    running,
    searxng_answer,
)

WEB = ToolSettings(enabled=("web",))


async def test_an_answer_searches_a_searxng_that_the_settings_name(tmp_path: Path) -> None:
    service = FakeService(searxng_answer)
    client = ScriptedClient(
        calling(call(1, "search_web", query="leek soup", max_results=2)),
        calling(call(2, "search_web", query="more soup", max_results=1)),
        said("Soup [1]."),
    )
    async with running(service) as url:
        runner = tool_runner(tmp_path, web_search=url)
        async with opened_chat(client, runner, tmp_path, WEB) as chat:
            questions = decide(chat, Decision.ONCE, Decision.TOOL)
            branch = await ask(chat, "How is soup made?")
        await runner.close()
    assert [question.preview.title for question in questions] == [
        *("search the web for leek soup", "search the web for more soup")
    ]
    assert [message.result.outcome for message in branch if message.result] == [ToolOutcome.DONE] * 2
    assert [tool.name for tool in client.options[-1].tools] == ["search_web", "fetch_url"]
    assert "[1] leek soup 1\nhttps://1.example/1?a=1&b=2" in client.requests[-1][2].content
    (sources,) = cited_sources(branch).values()
    assert [(source.path, source.heading) for source in sources] == [
        ("https://1.example/1?a=1&b=2", "leek soup 1"),
        ("https://2.example/2?a=1&b=2", "leek soup 2"),
        ("https://1.example/1?a=1&b=2", "more soup 1"),
    ]


async def test_no_key_of_a_search_reaches_the_chat_its_model_or_the_disk(tmp_path: Path) -> None:
    service = FakeService(brave_answer)
    client = ScriptedClient(calling(call(1, "search_web", query="soup")), said("Soup."))
    async with running(service) as url:
        runner = ToolRunner((WebServer(search=local_brave(url)),), lambda changes: tuple(changes))
        async with opened_chat(client, runner, tmp_path, WEB) as chat:
            decide(chat, Decision.ONCE)
            branch = await ask(chat, "How is soup made?")
    assert len(service.asked) == 1
    assert KEY not in repr((branch, client.requests, client.options))
    assert not _has_key(tmp_path)


def _has_key(folder: Path) -> bool:
    return any(KEY.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("decision", [Decision.DENY, Decision.NEVER])
async def test_nobody_is_asked_what_the_person_denies(tmp_path: Path, decision: Decision) -> None:
    service = FakeService(searxng_answer)
    client = ScriptedClient(calling(call(1, "search_web", query="soup")), said("No."))
    async with running(service) as url:
        runner = tool_runner(tmp_path, web_search=url)
        async with opened_chat(client, runner, None, WEB) as chat:
            decide(chat, decision)
            await ask(chat, "How is soup made?")
        await runner.close()
    assert service.asked == []
