"""The status line's words."""

from __future__ import annotations

import pytest

from app.client_fake import COMPLETED
from tui.connection import ConnectionState
from tui.meter import Meter
from tui.status import Status, status_of

READY = ConnectionState(phase="ready", model="guide", n_ctx=2048)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(model="guide", activity="starting"), "guide · starting the service"),
        (Status(model="guide", activity="loading", progress=0.55), "guide · loading ██████░░░░ 55%"),
        (Status(model="guide", activity="loading", progress=7.0), "guide · loading ██████████ 100%"),
        (Status(model="guide", activity="ready", n_ctx=2048), "guide · ready · context 0/2048"),
        (Status(model="a" * 30 + ".gguf", activity="failed"), f"…{'a' * 18}.gguf · not available"),
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


def test_finished_answer_shows_what_it_cost():
    assert status_of(READY, None, COMPLETED).text() == (
        "guide · ready · 48.0 tok/s · first token 0.25 s · context 52/2048"
    )


def test_running_answer_reads_then_answers_with_an_estimate():
    now_s = 0.0
    meter = Meter(lambda: now_s)
    assert status_of(READY, meter, None).activity == "reading"
    now_s = 0.5
    meter.count(1)
    now_s = 1.5
    meter.count(21)
    assert status_of(READY, meter, None).text() == (
        "guide · answering · ≈20.0 tok/s · first token 0.50 s · context 0/2048"
    )


def test_question_that_waits_for_loading_shows_the_loading():
    loading = ConnectionState(phase="loading", model="guide", progress=0.1)
    assert status_of(loading, Meter(lambda: 0.0), None).activity == "loading"
