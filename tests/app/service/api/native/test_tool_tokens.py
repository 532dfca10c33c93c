"""What the definitions of tools cost of each prompt, as the client asks for it."""

from __future__ import annotations

import pytest

from app.client.service_client import ServiceClient
from app.protocol.chat import Tool
from tests.app.running import RunningService

pytestmark = pytest.mark.slow

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = Tool("read_file", "Read a text file.", PATH)
WRITE = Tool("write_file", "Write a text file, in place of the one that is there.", PATH)


async def test_definitions_take_tokens_and_more_of_them_take_more(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        one, both = [await client.count_tool_tokens(tools) for tools in ([READ], [READ, WRITE])]
        assert await client.count_tool_tokens([]) == 0
    assert 0 < one < both
