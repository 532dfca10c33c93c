from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from app.common.event_log import LOG_NAME, log_event, logging_to_file


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
