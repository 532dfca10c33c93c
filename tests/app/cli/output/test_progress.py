from __future__ import annotations

import pytest

from app.cli.output.progress import JobProgress, Shown, with_progress
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


def test_short_work_writes_nothing_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    show_job()
    assert list(with_progress("Judging", iter(STEPS))) == STEPS
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("n_total", "is_bytes", "n_done", "lines"),
    [
        (8, False, [1, 2, 4, 6], ["Judging: 2 of 8, about 3 min left.", "Judging: 6 of 8, about 1 min left."]),
        (None, False, [1, 2, 3, 4], ["Judging: 2.", "Judging: 4."]),
        (8_000_000, True, [10**6, 2 * 10**6], ["Judging: 2 of 8 MB, about 3 min left."]),
        (None, True, [10**6, 2 * 10**6], ["Judging: 2 MB."]),
    ],
)
def test_long_work_writes_a_line_a_minute_into_a_log(
    n_total: int | None, is_bytes: bool, n_done: list[int], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    with Shown("Judging", n_total, is_bytes=is_bytes, now=lambda: now_s) as shown:
        for n in n_done:
            now_s += 30.0
            shown.bar.update(n_done=n)
    assert capsys.readouterr().err.splitlines() == lines


def test_a_title_in_a_log_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    with Shown("a", 4, now=lambda: now_s) as shown:
        now_s = 61.0
        shown.bar.update(n_done=1, title="blk\x1b]52;c;evil")
    assert "\x1b" not in capsys.readouterr().err
