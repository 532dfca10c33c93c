"""The status line's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.chat.backend import ConnectionState
from app.chat.state import AnswerFigures, AnswerTimer
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply
from tests.app.client.scripted_client import READY as READY_MODEL
from tests.tui.plans import split_plan
from tui.chat.format import Status, advice, status_of

READY = ConnectionState(phase="ready", model="guide", n_ctx=2048)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(model="guide", activity="starting"), "guide · starting the service"),
        (Status(model="guide", activity="loading", progress=0.55), "guide · loading ██████░░░░ 55%"),
        (Status(model="guide", activity="loading", progress=7.0), "guide · loading ██████████ 100%"),
        (Status(model="guide", activity="ready", n_ctx=2048), "guide · ready · context 0/2048"),
        (
            Status(model="guide", activity="ready", n_ctx=2048, think="low"),
            "guide · ready · think low · context 0/2048",
        ),
        (Status(model="a" * 30 + "b" * 12, activity="failed"), f"{'a' * 13}…{'b' * 10} · not available"),
        (
            Status(model="qwen2.5-coder:7b-instruct-q4_K_M", activity="failed"),
            "qwen2.5-coder…uct-q4_K_M · not available",
        ),
    ],
)
def test_status_reads(status, text):
    assert status.text() == text


def test_status_of_a_large_context_fits_80_columns():
    status = Status(
        model="guide",
        activity="answering",
        tokens_per_s=123.4,
        is_rate_estimated=True,
        time_to_first_token_s=1.23,
        n_context_tokens=13100,
        n_ctx=131072,
    )
    assert len(status.text()) <= 80 - 4  # a margin of two on each side


def _figures(cost):
    return AnswerFigures.of_cost("guide", cost) if cost else AnswerFigures(model="guide")


def _measured(timer):
    return AnswerFigures(
        model="guide", tokens_per_s=timer.tokens_per_s, time_to_first_token_s=timer.time_to_first_token_s
    )


def test_finished_answer_shows_what_it_cost():
    assert status_of(READY, _figures(COMPLETED)).text() == (
        "guide · ready · 48.0 tok/s · first token 0.25 s · context 52/2048"
    )


def test_figures_of_another_model_are_not_shown():
    status = status_of(replace(READY, model="llama"), _figures(REUSED))
    assert status.text() == "llama · ready · context ≈52/2048"


@pytest.mark.parametrize("rate", [0.0, -0.0, -0.01])
def test_a_rate_of_nothing_is_not_shown(rate):
    assert "tok/s" not in status_of(READY, _figures(replace(COMPLETED, decode_tokens_per_s=rate))).text()


def test_running_answer_reads_then_answers_with_an_estimate():
    now_s = 0.0
    timer = AnswerTimer(lambda: now_s)
    assert status_of(READY, _measured(timer), is_running=True).activity == "reading"
    now_s = 0.5
    timer.observe(1)
    now_s = 1.5
    timer.observe(21)
    assert status_of(READY, _measured(timer), is_running=True).text() == (
        "guide · answering · ≈20.0 tok/s · first token 0.50 s · context 0/2048"
    )


def test_question_that_waits_for_loading_shows_the_loading():
    loading = ConnectionState(phase="loading", model="guide", progress=0.1)
    assert status_of(loading, _figures(None), is_running=True).activity == "loading"


PARTIAL = split_plan(
    "partial",
    20,
    33,
    "13 of 33 layers are read from the processor's memory at 45 GB/s.",
    "quantize to Q4_K_M (4.6 GiB)",
)
FITS = split_plan("fits", 33, 33)
REUSED = replace(COMPLETED, n_cached_tokens=30, n_drafted_tokens=20, n_accepted_tokens=15)


@pytest.mark.parametrize(
    ("plan", "part"),
    [
        (FITS, " · GPU"),
        (split_plan("fits", 0, 33), " · CPU"),
        (split_plan("fits", 12, 33), " · GPU 12 of 33"),
        (None, ""),
    ],
)
def test_status_shows_where_the_model_is(plan, part):
    assert Status(model="guide", activity="ready", n_ctx=9, plan=plan).text() == f"guide · ready · context 0/9{part}"


def test_cached_tokens_and_accepted_drafts_come_last():
    status = status_of(replace(READY, plan=FITS), _figures(REUSED))
    assert status.text().endswith("context 52/2048 · GPU · cached 75% · drafts 15 of 20")


def test_a_model_that_lies_partly_in_slow_memory_is_warned_of_before_any_figure():
    status = status_of(replace(READY, plan=PARTIAL), _figures(COMPLETED))
    assert status.text().startswith("guide · ready · ! GPU 20 of 33: F7 helps · 48.0 tok/s")
    assert advice(PARTIAL) == (
        "13 of 33 layers are read from the processor's memory at 45 GB/s."
        " Suggestion: quantize to Q4_K_M (4.6 GiB). F7 shows the plan and applies it."
    )
    assert advice(FITS) == advice(None) == ""


@given(
    n_cells=st.integers(50, 200),
    plan=st.sampled_from([None, FITS, PARTIAL]),
    last=st.sampled_from([None, COMPLETED, REUSED]),
    activity=st.sampled_from(["loading", "ready", "reading", "answering", "failed"]),
    model=st.text("a日", min_size=1, max_size=60),
)
def test_a_line_has_no_more_cells_than_there_are_and_loses_its_last_parts_first(n_cells, plan, last, activity, model):
    figures = AnswerFigures.of_cost(model, last) if last else AnswerFigures(model=model)
    status = replace(status_of(replace(READY, plan=plan, progress=1.0, model=model), figures), activity=activity)
    line = status.text(n_cells)
    assert status.text().startswith(line)
    assert cell_len(line) <= n_cells
    assert " · " in line


async def test_the_line_grows_and_shrinks_with_the_terminal(open_app):
    client = ScriptedClient(ScriptedReply(ending=REUSED), model=replace(READY_MODEL, plan=PARTIAL))
    async with open_app(client, size=(140, 30)) as user:
        await user.sees("! GPU 20 of 33: F7 helps", "Suggestion: quantize to Q4_K_M")
        await user.asks("hello")
        await user.sees("cached 75% · drafts 15 of 20")
        await user.pilot.resize_terminal(60, 20)
        await user.no_longer_sees("cached")
        await user.sees("guide · ready · ! GPU 20 of 33: F7 helps · 48.0 tok/s")


def test_a_model_that_loads_from_a_path_has_the_name_of_the_models_screen():
    status = Status(model="/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf", activity="loading")
    assert status.text().startswith("qwen3:0.6b-q8_0 · loading")
