"""Words about a job that has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.protocol.job import Job
from quantizer.system.errors import ErrorInfo
from tui.jobs.monitor import ending, is_long

JOB = Job(id="1", kind="pull", title="pull org/repo:Q4_K_M", arguments={}, created_s=1.0, state="running")


@pytest.mark.parametrize(
    ("state", "note"), [("done", "is finished."), ("cancelled", "is cancelled."), ("interrupted", "is interrupted.")]
)
def test_the_notification_contains_how_a_job_ended(state, note):
    assert ending(replace(JOB, state=state)) == f"pull org/repo:Q4_K_M {note}"


def test_a_job_is_long_when_nobody_waits_for_it_any_more():
    assert is_long(replace(JOB, started_s=0.0, ended_s=60.0))
    assert not is_long(replace(JOB, started_s=0.0, ended_s=5.0))
    assert not is_long(JOB)


def test_the_error_of_a_failed_job_cannot_move_the_cursor():
    failed = replace(JOB, state="failed", title="pull \x1b[2J", error=ErrorInfo("HubError", "No\x9bpe.", "Try again."))
    assert ending(failed) == "pull [2J failed: Nope."
