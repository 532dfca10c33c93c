from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import pytest

from app.common.event_log import (
    LOG_NAME,
    LineLimit,
    PerMinute,
    keep_within,
    log_event,
    logging_libraries,
    logging_to_file,
)
from quantizer.system.files import open_private


def test_each_line_has_its_time_and_who_reports_it(tmp_path: Path) -> None:
    with logging_to_file(tmp_path):
        log_event("worker", "one\n\ntwo \n")
    log_event("app", "after the end")
    lines = (tmp_path / LOG_NAME).read_text().splitlines()
    assert [re.sub(r"^[\d-]{10} [\d:]{8} ", "", line) for line in lines] == ["worker: one", "worker: two"]


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with logging_to_file(tmp_path / "file"):
        log_event("app", "lost")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_its_owner_can_read_the_log(tmp_path: Path) -> None:
    with logging_to_file(tmp_path):
        log_event("worker", "one")
    assert (tmp_path / LOG_NAME).stat().st_mode & 0o777 == 0o600


def test_a_full_log_keeps_its_newest_half_while_others_append(tmp_path: Path) -> None:
    with open_private(tmp_path / "a.log") as file, open_private(tmp_path / "a.log") as other:
        for number in range(3_000):
            file.write(b"%06d\n" % number)
            file.flush()
            keep_within(file.fileno(), 1_000)
        other.write(b"other\n")
        other.flush()
        lines = (tmp_path / "a.log").read_bytes().splitlines()

    assert (tmp_path / "a.log").stat().st_size <= 1_010
    assert lines[0] == b"[what came before was left out]"
    assert lines[-2:] == [b"002999", b"other"]
    assert lines[1:-1] == [b"%06d" % number for number in range(3_001 - len(lines) + 1, 3_000)]


def test_what_is_no_file_stays_as_it_is() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 100)
    keep_within(writing, 10)
    assert os.read(reading, 1_000) == b"x" * 100
    os.close(reading)
    os.close(writing)


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord("service", logging.INFO, "", 0, text, (), None)


def test_more_lines_than_a_person_reads_are_counted_instead() -> None:
    now_s = [0.0]
    limit = LineLimit(burst=5, a_second=1, clock=lambda: now_s[0])

    assert [limit.filter(_record("a")) for _ in range(100)] == [True] * 5 + [False] * 95
    now_s[0] = 2.0
    next_line = _record("next")
    assert limit.filter(next_line)
    assert next_line.getMessage() == "[95 lines were left out] next"


def test_what_is_reported_once_a_minute_says_how_often_it_was(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    report = PerMinute(lambda: now_s[0])
    for number in range(500):
        report.log(f"connection {number} refused")
    now_s[0] = 61.0
    report.log("one more")

    assert [record.getMessage() for record in caplog.records] == [
        "connection 0 refused",
        "one more (499 times more since the last such line)",
    ]


@pytest.mark.slow
def test_a_flood_of_a_librarys_warnings_is_bounded_in_the_log(tmp_path: Path) -> None:
    with logging_to_file(tmp_path), logging_libraries(None):
        for number in range(20_000):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received. %s", number)

    assert (tmp_path / LOG_NAME).stat().st_size < 1 << 20
