from __future__ import annotations

from pathlib import Path

from app.service.jobs.store import MAX_LOG_BYTES, JobLog


def test_a_log_keeps_its_last_lines_whole_and_says_that_others_were_dropped(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "a.log")
    for number in range(5000):
        log.append(f"{number:08} {'x' * 120}\n")
    first, *lines = log.read().splitlines()
    assert first == "[the older part was dropped]"
    assert lines[-1].startswith("00004999 ")
    assert all(len(line) == 129 for line in lines)
    assert (tmp_path / "a.log").stat().st_size <= MAX_LOG_BYTES + 200
    assert len(lines) > 900


def test_a_log_contains_no_terminal_control_sequences(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "a.log")
    log.append("red\x1b[31m\x9b2J\u202e\n")
    assert log.read() == "red[31m2J\n"


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert JobLog(tmp_path / "a.log").read() == ""
