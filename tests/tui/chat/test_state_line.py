"""The line below the composer: the context, what a draft adds, and chips, as much as there is room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.backend import ConnectionState
from app.chat.conversation import ChatSettings
from app.chat.state import AnswerFigures
from app.protocol.sampling import model_sampling
from app.tools.approval import ToolSettings
from tests.app.client.scripted_client import COMPLETED, READY, ScriptedClient, ScriptedReply
from tests.tui.chat.test_format import PARTIAL
from tui.chat.composer.context_forecast import ContextForecast
from tui.chat.state_line import ChatFacts, chat_facts

GUIDE = ConnectionState(phase="ready", model="guide", n_ctx=8192)


def test_what_is_read_of_a_draft_comes_before_the_settings_and_gives_way_for_the_context() -> None:
    facts = ChatFacts(n_ctx=8192, chips=("think low",), reading="read 3,100 of 6,000")
    assert facts.content(80).plain == "▱▱▱▱▱▱▱▱▱▱ 0 of 8k     read 3,100 of 6,000 · think low"
    assert facts.content(24).plain == "▱▱▱▱▱▱▱▱▱▱ 0 of 8k"


@pytest.mark.parametrize(
    ("facts", "line", "color"),
    [
        (ChatFacts(n_ctx=8192), "▱▱▱▱▱▱▱▱▱▱ 0 of 8k", "$text-muted"),
        (ChatFacts(n_tokens=2100, n_ctx=8192), "▰▰▱▱▱▱▱▱▱▱ 2.1k of 8k", "$text-muted"),
        (ChatFacts(n_tokens=2100, n_ctx=8192, is_estimated=True), "▰▰▱▱▱▱▱▱▱▱ ≈2.1k of 8k", "$text-muted"),
        (ChatFacts(n_tokens=2100, n_ctx=8192, n_draft=400), "▰▰▰▱▱▱▱▱▱▱ ≈2.1k + 400 of 8k", "$text-muted"),
        (
            ChatFacts(n_tokens=10, n_ctx=8192, n_draft=400, n_uncounted=2),
            "▰▱▱▱▱▱▱▱▱▱ ≈10 + 400 of 8k, 2 not counted",
            "$text-muted",
        ),
        (ChatFacts(n_tokens=6800, n_ctx=8192), "▰▰▰▰▰▰▰▰▱▱ 6.8k of 8k · nearly full", "$text-warning"),
        (
            ChatFacts(n_tokens=6000, n_ctx=8192, n_draft=900),
            "▰▰▰▰▰▰▰▰▱▱ ≈6k + 900 of 8k · nearly full",
            "$text-warning",
        ),
        (ChatFacts(n_tokens=8192, n_ctx=8192), "▰▰▰▰▰▰▰▰▰▰ 8k of 8k · full", "$text-warning"),
        (ChatFacts(n_tokens=75_253, n_ctx=8192), "▰▰▰▰▰▰▰▰▰▰ 75k of 8k · too long", "$text-error"),
        (ChatFacts(n_tokens=100, n_ctx=8192, n_draft=9000), "▰▰▰▰▰▰▰▰▰▰ ≈100 + 9k of 8k · too long", "$text-error"),
        (ChatFacts(n_tokens=849, is_estimated=True), "≈849 tokens", "$text-muted"),
    ],
)
def test_the_context_reads(facts: ChatFacts, line: str, color: str) -> None:
    content = facts.content(80)
    assert content.plain == line
    assert content.spans[-1].style == color


SETTINGS = ChatSettings(
    system="Be brief.",
    options={"temperature": 0.2, "think": "high", "top_k": 40},
    tools=ToolSettings(enabled=frozenset({"files/read_file"})),
)


def test_chips_say_what_answers_are_made_with() -> None:
    facts = chat_facts(GUIDE, AnswerFigures(model="guide"), SETTINGS)
    assert facts.chips == ("system prompt", "temperature 0.2", "tools: files", "think high", "top_k 40")
    assert chat_facts(GUIDE, AnswerFigures(model="guide"), ChatSettings()).chips == ()
    other = replace(GUIDE, sampling=model_sampling([("model", {"temperature": 0.6})]))
    assert chat_facts(other, AnswerFigures(model="guide"), ChatSettings()).chips == ("temperature 0.6 (model's)",)
    small = ChatSettings(options={"temperature": 1e-06, "min_p": 5e-05})
    chips = chat_facts(GUIDE, AnswerFigures(model="guide"), small).chips
    assert chips == ("temperature 0.000001", "min_p 0.00005"), "as they would be typed"


def test_a_misplaced_model_is_warned_of_before_any_chip() -> None:
    facts = chat_facts(replace(GUIDE, plan=PARTIAL), AnswerFigures(model="guide"), SETTINGS)
    assert facts.content(60).plain == "▱▱▱▱▱▱▱▱▱▱ 0 of 8k     ▲ GPU 20 of 33: F7 helps"
    assert facts.content(90).plain.endswith("F7 helps     system prompt · temperature 0.2")


def test_what_another_model_counted_is_an_estimate_and_a_draft_adds_what_is_not_there_yet() -> None:
    figures = AnswerFigures.of_cost("guide", COMPLETED)
    assert not chat_facts(GUIDE, figures, ChatSettings()).is_estimated
    assert chat_facts(replace(GUIDE, model="llama"), figures, ChatSettings()).is_estimated
    assert chat_facts(GUIDE, figures, ChatSettings(), ContextForecast(95, 8192)).n_draft == 43


@given(n_cells=st.integers(44, 200), chips=st.lists(st.text("a日 ", min_size=1, max_size=30), max_size=5))
def test_whole_chips_are_shown_as_long_as_they_fit(n_cells: int, chips: list[str]) -> None:
    facts = ChatFacts(n_tokens=6800, n_ctx=8192, chips=tuple(chips))
    shown = facts.content(n_cells)
    assert shown.cell_length <= n_cells
    assert facts.content(10_000).plain.startswith(shown.plain)


async def test_the_line_grows_and_shrinks_with_the_terminal(open_app):
    client = ScriptedClient(ScriptedReply(), model=replace(READY, plan=PARTIAL))
    async with open_app(client, size=(140, 30)) as user:
        await user.asks("/system Be brief.")
        await user.asks("/think high")
        await user.sees("▱▱▱ ≈3 of 2k     ▲ GPU 20 of 33: F7 helps     system prompt · think high")
        await user.pilot.resize_terminal(72, 20)
        await user.no_longer_sees("think high")
        await user.sees("▲ GPU 20 of 33: F7 helps")
