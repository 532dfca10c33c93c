"""Jobs as rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.protocol.job import Job
from quantizer.system.errors import ErrorInfo
from tui.jobs.rows import cells, detail, grouped, heading_line, job_line, without_commands

NOW = datetime(2026, 3, 12, 15, 0, tzinfo=UTC)
DAY_S = 86_400.0
JOB = Job(id="1", kind="pull", title="Fetch org/repo:Q4_K_M", arguments={}, created_s=1.0, state="running")


def ended(job_id: str, days: float, state: str = "done", took_s: float = 95.0) -> Job:
    ended_s = NOW.timestamp() - days * DAY_S
    return replace(JOB, id=job_id, state=state, started_s=ended_s - took_s, ended_s=ended_s)


def test_a_running_job_shows_progress_speed_and_remaining_time():
    job = replace(JOB, fraction=0.625, bytes_per_s=12_300_000.0, remaining_s=95.0, n_done_bytes=625, n_bytes=1000)
    assert cells(job, NOW) == ("Download org/repo:Q4_K_M", "▰▰▰▰▰▰▱▱▱▱  62 %", "12.3 MB/s", "1 min 35 s")
    assert detail(job, NOW) == "Fetch org/repo:Q4_K_M · 625 B of 1 kB"


def test_unknown_figures_are_omitted():
    assert cells(JOB, NOW)[1:] == ("running…", "", "")
    assert cells(replace(JOB, state="queued"), NOW)[1:] == ("waiting", "", "")


def test_a_finished_job_shows_how_long_it_took_and_when():
    assert cells(ended("1", 0.1), NOW)[1:] == ("done", "took 2 min", "2 h")
    assert cells(ended("1", 1, "failed"), NOW)[1:] == ("failed", "took 2 min", "yesterday")
    assert cells(replace(ended("1", 0), started_s=None), NOW)[1:] == ("done", "", "now")


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3600, "1 h 00 min"), (-1, "0 s")])
def test_durations_have_two_units(seconds, shown):
    assert cells(replace(JOB, remaining_s=seconds), NOW)[3] == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_bar_is_always_as_long_and_full_only_at_the_end(fraction):
    bar = cells(replace(JOB, fraction=fraction), NOW)[1]
    assert len(bar) == 16
    assert ("100 %" in bar) == (fraction >= 1.0) == ("▱" not in bar)


def test_a_failure_is_shown_with_its_remedy_and_cannot_move_the_cursor():
    failed = replace(JOB, state="failed", title="pull \x1b[2J", error=ErrorInfo("HubError", "No\x9bpe.", "Try again."))
    assert detail(failed, NOW) == "pull [2J · Nope. Try again."
    assert job_line(failed, NOW, 80).plain.split()[0] == "✕"


@pytest.mark.parametrize("n_cells", [10, 20, 30, 40, 60, 78, 118])
@pytest.mark.parametrize("title", ["Fetch org/model:Q4_K_M", "日本語" * 20, "x" * 100, ""])
def test_a_row_fits_and_what_it_leaves_out_is_in_the_detail(n_cells, title):
    job = replace(JOB, title=title, fraction=0.4, bytes_per_s=2e6, remaining_s=30.0)
    line = job_line(job, NOW, n_cells).plain
    assert cell_len(line) <= max(n_cells, 10)
    both = line + detail(job, NOW, n_cells)
    assert all(figure in both for figure in ("40 %", "2 MB/s", "30 s"))


def test_finished_jobs_are_grouped_by_day_and_those_before_today_are_folded():
    jobs = (ended("old", 40), ended("y2", 1, "failed"), ended("y1", 1), ended("today", 0.1), JOB)
    groups = list(grouped(jobs, NOW))
    assert [(group.heading, group.is_folded, len(group.jobs)) for group in groups] == [
        ("Now", False, 1),
        ("Today", False, 1),
        ("Yesterday", True, 2),
        ("January", True, 1),
    ]
    assert heading_line(groups[2]).plain == "▸ Yesterday  1 done, 1 failed"
    toggled = list(grouped(jobs, NOW, frozenset({"Today", "Yesterday"})))
    assert [group.is_folded for group in toggled] == [False, True, False, True]


def test_a_quantization_is_named_by_model_and_type_without_its_path():
    source = "/data/models/someone/l1b/l1b-f16.gguf"
    job = replace(JOB, kind="quantize", title="Quantize l1b:f16 to Q3_K_S", arguments={"source": source})
    assert cells(job, NOW)[0] == "Quantize l1b:f16 → Q3_K_S"
    assert cells(replace(job, title=f"Quantize {source} to 4.2GB"), NOW)[0] == "Quantize l1b:f16 → 4.2GB"


def test_a_download_is_named_without_its_publisher():
    job = replace(JOB, title="Fetch some-publisher/repo:Q4_K_M", arguments={"reference": "some-publisher/repo:Q4_K_M"})
    assert cells(job, NOW)[0] == "Download repo:Q4_K_M"


def test_the_command_line_is_no_part_of_the_log_that_is_read():
    log = "[2026-03-12 15:00:00] localllm pull org/repo --json\nfetching\n[done]\n"
    assert without_commands(log) == "fetching\n[done]\n"
