"""A process whose tools write files is killed: every file is whole, and everything can be taken back.

`tests/battery/kills/kill_tools.py` does so a hundred times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.app.tools.killed_file_writer import kill_a_file_writer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="permission bits")]


@pytest.mark.parametrize("after_s", [0.05, 0.4, 1.0])
def test_a_killed_writer_loses_no_content(tmp_path: Path, after_s: float) -> None:
    trial = kill_a_file_writer(tmp_path, after_s, str(after_s))
    assert trial.faults == ()
