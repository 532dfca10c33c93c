from __future__ import annotations

import os
import subprocess
import sys

from app.service.pool.memory import private_bytes, resident_bytes


def test_a_process_holds_what_the_system_says_and_files_are_not_its_own() -> None:
    assert 0 < private_bytes(os.getpid()) <= resident_bytes(os.getpid())


def test_none_and_a_process_that_has_ended_hold_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert [of(pid) for of in (private_bytes, resident_bytes) for pid in (None, ended.pid)] == [0] * 4
