"""Calls of a model through the real service, whose engine says what it is asked to."""

from __future__ import annotations

from app.client.service_client import ServiceClient
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message, Tool, ToolCall, with_deltas
from tests.app.running import RunningService

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = Tool("read_file", "Read a text file.", PATH)
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "notes.txt"}}\n</tool_call>'


async def test_calls_arrive_and_their_results_are_answered(service: RunningService) -> None:
    options = GenerationOptions(tools=(READ,), temperature=0.0)
    question = Message("user", f"Read it. <say>One moment.{CALL}{CALL.replace('notes', 'plans')}</say>")
    calls: tuple[ToolCall, ...] = ()
    text = ""
    async with ServiceClient(service.url) as client:
        async for event in client.chat([question], options=options):
            if isinstance(event, AnswerDelta):
                calls = with_deltas(calls, event.calls)
                text += event.text
            elif isinstance(event, Completed):  # on a busy machine, how far the prompt is read comes before
                assert event.finish_reason == "tool_calls"
        assert text.strip() == "One moment."
        assert [(call.name, call.arguments) for call in calls] == [
            ("read_file", f'{{"path": "{name}.txt"}}') for name in ("notes", "plans")
        ]
        assert len({call.call_id for call in calls}) == 2
        results = [Message("tool", "<say>Leeks.</say>", call_id=call.call_id, name=call.name) for call in calls]
        turns = [question, Message("assistant", text, calls=calls), *results]
        *deltas, completed = [event async for event in client.chat(turns, options=options)]
    assert "".join(delta.text for delta in deltas if isinstance(delta, AnswerDelta)) == "Leeks."
    assert isinstance(completed, Completed)
    assert completed.n_cached_tokens > 0
