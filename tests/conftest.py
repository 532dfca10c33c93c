"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

# Started in the background of a script, tests would hand an ignored Ctrl-C on to every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: Hypothesis would fail one whose example took 200 ms because the machine had other things to do.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker more than there are processors, four at most: many tests wait for a process of their own."""
    return min((os.cpu_count() or 1) + 1, 4)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported and collected to no later garbage collection: a full one took a second and more."""
    gc.collect()
    gc.freeze()
