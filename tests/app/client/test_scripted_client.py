"""The scripted client keeps to the calls of the real one."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from app.client.service_client import LibraryClient, ServiceClient
from app.protocol.chat import AnswerDelta, ToolCall, ToolCallDelta
from app.protocol.errors import RequestError
from app.protocol.job import Job
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedLibrary, ScriptedReply

_NOT_SCRIPTED = {"count_tokens", "attend", "stop", "embed", "rerank", "speak", "transcribe"}


@pytest.mark.parametrize("name", sorted({name for name in vars(ServiceClient) if name[0] != "_"} - _NOT_SCRIPTED))
def test_scripted_client_has_the_signatures_of_the_real_one(name):
    assert inspect.signature(getattr(ScriptedClient, name)) == inspect.signature(getattr(ServiceClient, name))


@pytest.mark.parametrize("name", sorted(name for name in vars(LibraryClient) if name[0] != "_"))
def test_the_scripted_library_has_the_signatures_of_the_real_one(name):
    assert inspect.signature(getattr(ScriptedLibrary, name)) == inspect.signature(getattr(LibraryClient, name))


async def test_replies_come_in_order_and_the_last_serves_all_later_questions():
    client = ScriptedClient(ScriptedReply(deltas=("a",)), ScriptedReply(deltas=("b", "c")))
    answers = [[event async for event in client.chat([])] for _ in range(3)]
    assert answers[0] == [AnswerDelta("a", 1, response_id="answer-1"), COMPLETED]
    for number, answer in enumerate(answers[1:], start=2):
        name = f"answer-{number}"
        assert answer == [AnswerDelta("b", 1, response_id=name), AnswerDelta("c", 2, response_id=name), COMPLETED]


async def test_scripted_error_ends_an_answer_and_is_no_abort():
    client = ScriptedClient(ScriptedReply(ending=EngineError("died")))
    with pytest.raises(EngineError, match="died"):
        await anext(client.chat([]))
    assert client.n_aborted == 0


async def test_who_watches_scripted_jobs_sees_what_stands_and_what_changes():
    client = ScriptedClient(jobs=[Job(id="old", kind="tune", title="tune guide", arguments={}, created_s=0.0)])
    watch = client.watch_jobs()
    assert (await anext(watch)).id == "old"
    started = await client.start_job("pull", {"reference": "org/repo"})
    assert await anext(watch) == started
    client.change(replace(started, state="running", fraction=0.5))
    assert (await anext(watch)).fraction == 0.5
    await client.cancel_job(started.id)
    assert (await anext(watch)).state == "cancelled"
    await client.forget_job(started.id)
    assert (await anext(watch)).state == "forgotten"
    assert [job.id for job in await client.jobs()] == ["old"]
    await watch.aclose()


async def test_scripted_jobs_refuse_what_the_service_refuses():
    client = ScriptedClient()
    job = await client.start_job("tune", {"model": "guide"})
    with pytest.raises(RequestError, match="queued"):
        await client.retry_job(job.id)
    with pytest.raises(RequestError, match="no job"):
        await client.job("another")
    client.change(replace(job, state="done"))
    with pytest.raises(RequestError, match="done"):
        await client.retry_job(job.id)


async def test_scripted_calls_come_in_two_pieces_and_end_the_answer():
    client = ScriptedClient(ScriptedReply(deltas=("a",), calls=(ToolCall("c", "read", "{}"),)))
    events = [event async for event in client.chat([])]
    name = "answer-1"
    assert events[1:3] == [
        AnswerDelta(n_tokens=2, calls=(ToolCallDelta(0, "c", "read"),), response_id=name),
        AnswerDelta(n_tokens=3, calls=(ToolCallDelta(0, arguments="{}"),), response_id=name),
    ]
    assert events[3].finish_reason == "tool_calls"
