"""What a chat is at, in words, at any moment between its events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.activity import SPINNER, activity_of, bar_of, spinner
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import Attachment, MessageContent
from app.chat.events import Reading
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import AnswerFigures, ChatState, RunningAnswer
from app.protocol.chat import PromptProgress, ThreadUse
from tests.app.client.scripted_client import COMPLETED, PLAN, READY, ScriptedClient, ScriptedReply

READ = PromptProgress(n_tokens=6000, n_cached=0, n_read=2100, elapsed_s=30.0, left_s=58.0)
BUSY, QUIET = ThreadUse(1, 2, 0.97, 2), ThreadUse(2, 2, 0.04, 2)
ANSWERS = RunningAnswer(begun_s=100.0, heard_s=100.0)
GUIDE = ConnectionState(phase="ready", model="guide", n_ctx=2048)


def chat_at(running: RunningAnswer | None, state: ConnectionState = GUIDE, activity: str = "answering") -> ChatState:
    chat = ChatState(
        OpenedChat(InMemoryChatRepository().new(), Conversation()),
        LoadedModel(ScriptedClient(), state),
        clock=lambda: 0,
    )
    chat.activity, chat.running = activity, running  # type: ignore[assignment]
    return chat


@pytest.mark.parametrize(
    ("running", "after_s", "line"),
    [
        (None, 0.0, "reading"),
        (ANSWERS, 1.0, "reading"),
        (ANSWERS, 3.0, "reading · 3 s"),
        (ANSWERS, 12.0, "reading · no token for 12 s"),
        (replace(ANSWERS, progress=READ), 0.0, "reading ▰▰▰▱▱▱▱▱▱▱ 2,100 of 6,000 tokens · 58 s left"),
        (replace(ANSWERS, progress=READ), 3.0, "reading ▰▰▰▱▱▱▱▱▱▱ 2,100 of 6,000 tokens · 55 s left"),
        (
            replace(ANSWERS, progress=replace(READ, left_s=None)),
            0.0,
            "reading ▰▰▰▱▱▱▱▱▱▱ 2,100 of 6,000 tokens",
        ),
        (
            replace(ANSWERS, progress=replace(READ, left_s=200.0), machine=BUSY),
            0.0,
            "reading ▰▱▱▱▱▱▱▱▱▱ 2,100 of 6,000 tokens · 3 min 20 s left · slow: other programs use 2 of 2 cores",
        ),
        (replace(ANSWERS, progress=READ, machine=QUIET), 0.0, "reading ▰▰▰▱▱▱▱▱▱▱ 2,100 of 6,000 tokens · 58 s left"),
        (replace(ANSWERS, progress=PromptProgress(n_ahead=1)), 0.0, "waits for another answer"),
        (replace(ANSWERS, progress=PromptProgress(n_ahead=3)), 65.0, "waits for 3 other answers · 1 min 5 s"),
        (replace(ANSWERS, is_writing=True), 0.0, "writing · 12 tokens a second"),
        (replace(ANSWERS, is_writing=True), 12.4, "writing · no token for 12 s"),
        (
            replace(ANSWERS, is_writing=True, machine=BUSY),
            0.0,
            "writing · 12 tokens a second · slow: other programs use 2 of 2 cores",
        ),
    ],
)
def test_an_answer_says_what_it_is_at(running: RunningAnswer | None, after_s: float, line: str) -> None:
    chat = chat_at(running)
    chat.figures = AnswerFigures(model="guide", tokens_per_s=12.3)
    activity = activity_of(chat, 100.0 + after_s)
    assert activity is not None
    assert activity.line() == line
    assert activity.is_moving


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (replace(GUIDE, phase="starting"), "starting the service"),
        (replace(GUIDE, phase="loading"), "preparing the model"),
        (replace(GUIDE, phase="loading", progress=0.4), "loading ▰▰▰▰▱▱▱▱▱▱ 40%"),
        (
            replace(GUIDE, phase="loading", progress=0.4, load_bytes=5_000_000_000, load_left_s=7.2),
            "loading ▰▰▰▰▱▱▱▱▱▱ 2 GB of 5 GB · 7 s left",
        ),
        (replace(GUIDE, phase="loading", progress=1.0), "getting the model ready"),
    ],
)
@pytest.mark.parametrize("activity", ["", "answering"])
def test_a_model_that_loads_comes_before_the_answer_that_waits_for_it(
    state: ConnectionState, line: str, activity: str
) -> None:
    found = activity_of(chat_at(ANSWERS if activity else None, state, activity), 100.0)
    assert found is not None
    assert found.line("⠋") == f"⠋ {line}"


def test_a_chat_beside_the_connections_model_does_not_wait_for_it() -> None:
    chat = chat_at(ANSWERS, replace(GUIDE, phase="loading"))
    chat.pinned_model = "other"
    found = activity_of(chat, 100.0)
    assert found is not None
    assert found.word == "reading"


def test_nothing_runs_nothing_is_said() -> None:
    assert activity_of(chat_at(None, activity=""), 100.0) is None


def test_a_state_of_the_service_has_the_bytes_that_are_loaded() -> None:
    state = ConnectionState.of_model(replace(READY, state="loading", progress=0.5, plan=PLAN, load_left_s=2.0))
    assert (state.load_bytes, state.load_left_s) == (PLAN.devices[0].weights_bytes, 2.0)


def test_bars_are_empty_for_nothing_and_full_for_all_only() -> None:
    assert [bar_of(share).count("▰") for share in (-1.0, 0.0, 0.001, 0.5, 0.999, 1.0, 7.0)] == [0, 0, 1, 5, 9, 10, 10]


def test_the_sign_moves_five_times_a_second() -> None:
    assert [spinner(0.2 * index + 0.01) for index in range(10)] == list(SPINNER)


async def test_an_exchange_tells_the_progress_of_its_prompt_and_forgets_it_with_the_first_word() -> None:
    later = replace(READ, n_read=4000)
    client = ScriptedClient(ScriptedReply(progress=(READ, later), deltas=("Hello.",), pause_after=2))
    opened = OpenedChat(InMemoryChatRepository().new(), Conversation())
    chat = ChatState(opened, LoadedModel(client, GUIDE), clock=lambda: 5.0)
    attached = (Attachment(name="notes.pdf", content="text"),)
    reading, running = [], []
    async for event in ask(chat, MessageContent(role="user", content="What?", attachments=attached), None):
        running.append(chat.running)
        if isinstance(event, Reading):
            found = activity_of(chat, 5.0)
            assert found is not None
            reading.append((event.progress, found.word))
        if isinstance(event, Reading) and event.progress is not None:
            client.resume()
    assert reading == [(None, "reading notes.pdf"), (later, "reading notes.pdf")]  # what came at once is one event
    assert RunningAnswer(begun_s=5.0, heard_s=5.0, is_writing=True) in running
    assert chat.running is None
    assert chat.figures.cost == COMPLETED
