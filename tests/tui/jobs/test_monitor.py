"""A job in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.job import Job
from quantizer.system.errors import ErrorInfo
from tui.jobs.monitor import cells, detail, ending, is_long

JOB = Job(id="1", kind="pull", title="pull org/repo:Q4_K_M", arguments={}, created_s=1.0, state="running")


def test_a_running_job_shows_progress_speed_and_remaining_time():
    job = replace(JOB, fraction=0.625, bytes_per_s=12_300_000.0, remaining_s=95.0, n_done_bytes=625, n_bytes=1000)
    assert cells(job) == ("pull org/repo:Q4_K_M", "running", "██████░░░░  62 %", "12.3 MB/s", "1 min 35 s")
    assert detail(job) == "pull org/repo:Q4_K_M · 625 B of 1 kB"


def test_unknown_figures_are_omitted():
    assert cells(JOB)[2:] == ("…", "", "")
    assert cells(replace(JOB, state="done", bytes_per_s=1e6, remaining_s=3.0))[1:] == ("done", "", "", "")


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3600, "1 h 00 min"), (-1, "0 s")])
def test_durations_have_two_units(seconds, shown):
    assert cells(replace(JOB, remaining_s=seconds))[4] == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_bar_is_always_as_long_and_full_only_at_the_end(fraction):
    bar = cells(replace(JOB, fraction=fraction))[2]
    assert len(bar) == 16
    assert ("100 %" in bar) == (fraction >= 1.0) == ("░" not in bar)


def test_a_failure_is_shown_with_its_remedy_and_cannot_move_the_cursor():
    failed = replace(JOB, state="failed", title="pull \x1b[2J", error=ErrorInfo("HubError", "No\x9bpe.", "Try again."))
    assert detail(failed) == "pull [2J · Nope. Try again."
    assert ending(failed) == "pull [2J failed: Nope."
    assert cells(failed)[1] == "FAILED"


@pytest.mark.parametrize(
    ("state", "note"), [("done", "is finished."), ("cancelled", "is cancelled."), ("interrupted", "is interrupted.")]
)
def test_the_notification_contains_how_a_job_ended(state, note):
    assert ending(replace(JOB, state=state)) == f"pull org/repo:Q4_K_M {note}"


def test_a_job_is_long_when_nobody_waits_for_it_any_more():
    assert is_long(replace(JOB, started_s=0.0, ended_s=60.0))
    assert not is_long(replace(JOB, started_s=0.0, ended_s=5.0))
    assert not is_long(JOB)


def test_a_quantization_is_named_by_model_and_type_without_its_path():
    source = "/data/models/someone/l1b/l1b-f16.gguf"
    job = replace(JOB, kind="quantize", title="Quantize l1b:f16 to Q3_K_S", arguments={"source": source})
    assert cells(job)[0] == "l1b:f16 → Q3_K_S"
    assert cells(replace(job, title=f"Quantize {source} to 4.2GB"))[0] == "l1b:f16 → 4.2GB"


def test_a_download_is_named_without_its_publisher():
    job = replace(JOB, title="Fetch some-publisher/repo:Q4_K_M", arguments={"reference": "some-publisher/repo:Q4_K_M"})
    assert cells(job)[0] == "Fetch repo:Q4_K_M"
