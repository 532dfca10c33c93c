"""Rows of the models screen, without a screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.protocol.job import Job
from app.protocol.library import LocalModel
from quantizer.system.errors import ErrorInfo
from tui.models.rows import (
    ModelRow,
    format_context,
    format_progress,
    local_rows,
    with_jobs,
)

_ROW = ModelRow(id="remote:a/b:Q4_K_M:", kind="remote", name="b", n_bytes=10**9, reference="a/b:Q4_K_M")


def _job(state, **more):
    arguments = {"reference": "a/b:Q4_K_M"}
    return Job(id="1", kind="pull", title="", arguments=arguments, created_s=0.0, state=state, **more)


@pytest.mark.parametrize(
    ("job", "words", "is_under_way"),
    [
        (_job("queued"), "queued", True),
        (_job("running", fraction=0.5, bytes_per_s=2e6, remaining_s=5400), "50%, 2 MB/s, 1.5 h left", True),
        (_job("running"), "in progress", True),
        (_job("done"), "done", False),
        (_job("cancelled"), "cancelled", False),
    ],
)
def test_a_downloading_row_shows_its_progress(job, words, is_under_way):
    (row,) = with_jobs([_ROW], [job])
    assert format_progress(job) == row.progress == words
    assert bool(row.job_id) == is_under_way


def test_a_job_for_another_type_is_not_the_rows():
    other = replace(_job("running"), arguments={"reference": "a/b:Q4_K_M", "quantize": "Q8_0"})
    assert with_jobs([_ROW], [other, replace(_job("running"), state="forgotten")]) == (_ROW,)


def test_contexts_are_named_as_people_do():
    assert [format_context(n) for n in (0, 512, 2048, 40960, 131072)] == ["", "512", "2k", "40k", "128k"]


@pytest.mark.parametrize("words", ["coder:7b", "Coder-7B-Q4", "7b coder"])
def test_a_search_finds_a_model_by_its_name_and_by_that_of_its_file(words):
    model = LocalModel(id="coder:7b-q4_K_M", where="library", path="/m/Coder-7B-Q4_K_M.gguf", n_bytes=1)
    assert [row.name for row in local_rows([model], words)[0]] == ["coder:7b-q4_K_M"]
    assert local_rows([model], "8b")[0] == ()


_HERE = ModelRow(id="local:library:/m.gguf", kind="local", name="m", model="/m.gguf", modified_s=100)
_DAMAGED = ErrorInfo("ModelFileError", "m is damaged: m.gguf has another SHA-256.", "Download it again.")


_VERIFICATIONS = pytest.mark.parametrize(
    ("changes", "progress", "verified", "is_sound"),
    [
        ({"state": "queued"}, "verifying: queued", "", False),
        ({"state": "running", "fraction": 0.25}, "verifying: 25%", "", False),
        ({"state": "done", "ended_s": 101.0, "message": "As recorded."}, "", "Verified. As recorded.", True),
        ({"state": "done", "ended_s": 99.0, "message": "As recorded."}, "", "", False),  # changed since
        (
            {"state": "failed", "ended_s": 101.0, "error": _DAMAGED},
            "",
            "Not verified: m is damaged: m.gguf has another SHA-256. Download it again.",
            False,
        ),
        ({"state": "cancelled", "ended_s": 101.0}, "", "", False),
        ({"state": "forgotten", "ended_s": 101.0}, "", "", False),
    ],
)


@_VERIFICATIONS
def test_a_recorded_mismatch_is_shown_without_a_job_and_outlasts_an_older_one(changes, progress, verified, is_sound):
    """The parameters are those of the job, whose outcome counts only while it runs and where it failed."""
    model = LocalModel(
        id="m", where="library", path="/m.gguf", n_bytes=1, modified_s=100, mismatch="m.gguf has another."
    )
    (shown,), _ = local_rows([model])
    assert (shown.verified, shown.is_sound) == ("Not verified: m.gguf has another.", False)
    job = Job(id="1", kind="verify", title="", arguments={"model": "/m.gguf"}, created_s=0.0, **changes)
    (row,) = with_jobs([shown], [job])
    assert (row.progress, row.is_sound) == (progress, False)
    assert row.verified.startswith("Not verified: m")


@_VERIFICATIONS
def test_a_row_shows_its_last_verification(changes, progress, verified, is_sound):
    job = Job(id="1", kind="verify", title="", arguments={"model": "/m.gguf"}, created_s=0.0, **changes)
    (row,) = with_jobs([_HERE], [job])
    assert (row.progress, row.verified, row.is_sound) == (progress, verified, is_sound)
    assert bool(row.job_id) == (not job.has_ended)
