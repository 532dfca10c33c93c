"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# Started in the background of a script, tests would hand an ignored Ctrl-C on to every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: Hypothesis would fail one whose example took 200 ms because the machine had other things to do.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
