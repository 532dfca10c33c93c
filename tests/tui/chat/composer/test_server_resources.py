"""Resources of MCP servers under @, and their prompts after /prompt, in the app."""

from __future__ import annotations

import pytest

from app.tools.runner import ToolRunner
from tests.app.chat.tool_chats import said
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.mcp.scripted import Script

pytestmark = pytest.mark.slow


async def test_resources_and_prompts_are_offered_and_used(open_app):
    tools = ToolRunner([Script().server()], lambda _: ())
    async with open_app(ScriptedClient(said("Done.")), tools=tools) as user:
        await user.sees("ready")
        await user.asks("/tools on notes")
        await user.sees("1 tool on")
        await user.types("/prompt not")
        await user.sees("notes/review", "of an MCP server")
        await user.presses("escape", "ctrl+u")
        await user.types("Read @notes:note")
        await user.sees("notes:note://1")
        await user.presses("tab")
        await user.sees("[notes:note://1 · 2 tokens")
        await user.presses("enter")
        await user.sees("Done.")
        assert "cannot be" not in user.screen_text
    (question, _) = user.app.app_context.session.chat.conversation.branch
    assert [each.content for each in question.attachments] == ["a note"]
