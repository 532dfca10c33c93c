"""The metrics screen."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from app.chat.conversation import MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.job import Job
from app.protocol.plan import MeasuredRun
from app.protocol.status import AnswerRecord, EngineCounters, LatencySummary, Occupancy
from tests.app.client.scripted_client import COMPLETED, PLAN, READY, ScriptedClient

pytestmark = pytest.mark.slow

COUNTERS = EngineCounters(
    n_finished=3,
    n_prompt_tokens=100,
    n_output_tokens=60,
    cached_share=0.6,
    prefill_tokens_per_s=900.0,
    decode_tokens_per_s=48.0,
    n_drafted_tokens=0,
    n_accepted_tokens=0,
    first_token_s=LatencySummary(3, 0.2, 0.4, 0.7),
    inter_token_s=LatencySummary(50, 0.02, 0.03, 1.0),
)
WORKING = replace(READY, counters=COUNTERS, occupancy=Occupancy(1, 2, 300, 2048), n_bytes=400 << 20)


def run(number: int, tps: float) -> Job:
    measured = [{"work": "decode", "case": "depth 0", "unit": "tok/s", "median": tps}]
    result: dict[str, Any] = {"results": [{"measurements": measured}], "rooflines": []}
    arguments = {"model": "guide"}
    return Job(
        id=str(number), kind="bench", title="", arguments=arguments, created_s=1e9 + number, state="done", result=result
    )


async def test_f9_shows_what_each_model_does_and_did(open_app):
    client = ScriptedClient(model=WORKING)
    measured = (MeasuredRun(kind="decode", depth=9, tps=51.0, gpu_layers=0, at_s=1.7e9),)
    client.plan_answer = lambda _: replace(PLAN, measured=measured)
    async with open_app(client) as user:
        await user.presses("f9")
        await user.sees("● guide", "1 answering, 2 waiting", "400 MiB", "context 2,048", "Not measured yet")
        await user.sees("1 answer since", "No benchmarks yet")
        assert user.screen_text.count("Not measured") == 1
        assert "KV cells" not in user.screen_text
        await user.presses("d")
        await user.sees("3 finished", "answers 48", "0.20 s, p95 0.40", "60% of all", "300 of 2,048, shared")


async def test_the_last_answers_are_listed_with_models_that_are_gone(open_app):
    client = ScriptedClient(model=WORKING)
    made = AnswerRecord(
        model="gone-model",
        at_s=1.7e9,
        n_prompt_tokens=40,
        n_cached_tokens=0,
        n_output_tokens=55,
        first_token_s=0.25,
        prefill_tps=None,
        decode_tps=48.0,
    )
    client.answers = (made, replace(made, model="guide", decode_tps=None))
    async with open_app(client, size=(120, 40)) as user:
        await user.presses("f9")
        await user.sees("gone-model", "Tokens a second  48", "First word  0.25 s", "Memory")
        assert "Not measured" not in user.screen_text


async def test_answers_from_before_the_service_started_are_those_of_the_chats(open_app, tmp_path):
    began_s = time.time()
    stats = {**asdict(COMPLETED), "n_prompt_tokens": 77, "n_output_tokens": 88}
    with ChatStore(tmp_path) as store:
        chat = store.chats.create(title="old")
        question = store.messages.add(chat.id, None, MessageContent(role="user", content="Hi"))
        for model, at_s, kept in (("old-model", began_s - 9000, stats), ("imported", began_s - 8000, {}),
                                  ("new-model", began_s + 60, stats)):  # fmt: skip
            said = MessageContent(role="assistant", content="Ho", model=model, created_ms=int(at_s * 1000), stats=kept)
            store.messages.add(chat.id, question.id, said)
    client = ScriptedClient(model=WORKING)
    client.answers_since_s = began_s
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (120, 40), repository) as user:
        await user.presses("f9")
        await user.sees(
            "old-model", "77", "88", "48", "Last answers  The service counts since", "older ones are from your chats"
        )
        assert "Not measured" not in user.screen_text
        assert "imported" not in user.screen_text  # nobody counted it
        assert "new-model" not in user.screen_text  # the service would have it


async def test_b_asks_says_how_long_it_takes_and_has_the_model_measured_as_a_job(open_app):
    client = ScriptedClient(model=WORKING)
    async with open_app(client) as user:
        await user.presses("f9")
        await user.sees("No benchmarks yet")
        await user.presses("b")
        await user.sees("Measures how fast guide", "one to five minutes", "Not now")
        await user.presses("escape")
        await user.no_longer_sees("Measures how fast")
        await user.presses("b")
        await user.sees("Not now")
        await user.presses("down", "enter")
        await user.no_longer_sees("Measures how fast")
        assert client.started == []
        await user.presses("b")
        await user.sees("Measure it now")
        await user.presses("enter")
        await user.sees("guide is being benchmarked", "guide: queued")
    assert client.started == [("bench", {"model": "guide", "only": "decode,prefill,turns"})]


async def test_two_runs_are_compared_with_enter_on_both(open_app):
    async with open_app(ScriptedClient(model=WORKING, jobs=[run(1, 40.0), run(2, 60.0)])) as user:
        await user.presses("f9")
        await user.sees("answers 60 tok/s")
        await user.presses("down", "enter")
        await user.sees("Enter on another run compares both")
        await user.presses("down", "enter")
        await user.sees("1.50 ×")
        await user.presses("c")
        await user.no_longer_sees("1.50 ×")


async def test_nothing_is_polled_while_another_screen_is_shown(open_app, monkeypatch):
    monkeypatch.setattr("tui.metrics.screen._POLL_S", 0.02)
    client = ScriptedClient(model=WORKING)
    n_requests = 0
    jobs = client.jobs

    async def counted() -> tuple[Job, ...]:
        nonlocal n_requests
        n_requests += 1
        return await jobs()

    client.jobs = counted
    async with open_app(client) as user:
        await user.presses("f9")
        await user.sees("No benchmarks yet")
        await user.presses("escape")
        await user.sees("Ask something")
        n_before = n_requests
        await user.pilot.pause(0.2)  # ten polls would be due
        assert n_requests == n_before
