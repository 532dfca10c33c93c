from __future__ import annotations

import pytest

from app.cli.output.progress import JobProgress, with_progress
from app.engine.model_task import TaskProgress
from quantizer.write.events import Event, JobPlanned, TensorWritten

JOB: list[Event] = [
    JobPlanned("m.gguf", "Q4_0", 2_000_000, 2, 10, 1),
    TensorWritten(0, "blk.0[red]\x1b]52;c;evil", "BF16", "Q4_0", 1_000_000),
]


STEPS = [TaskProgress(index, 3) for index in range(3)]


def show_job() -> None:
    with JobProgress() as progress:
        for event in JOB:
            progress.show(event)


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("_terminal")
def test_steps_are_handed_on_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(with_progress("Judging", iter(STEPS))) == STEPS
    shown = capsys.readouterr().err
    assert "Judging" in shown
    assert "3/3" in shown


@pytest.mark.usefixtures("_terminal")
def test_a_job_shows_its_bytes_and_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    show_job()
    shown = capsys.readouterr().err
    assert "blk.0[red]]52;c;evil BF16 → Q4_0" in shown
    assert "1.0/2.0 MB" in shown


def test_where_nobody_watches_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    show_job()
    assert list(with_progress("Judging", iter(STEPS))) == STEPS
    assert capsys.readouterr().err == ""
