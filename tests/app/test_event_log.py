from __future__ import annotations

import re
from pathlib import Path

from app.event_log import LOG_NAME, log_event, logging_to_file


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
