"""What holds for every test."""

from __future__ import annotations

import signal

# Started in the background of a script, tests would hand an ignored Ctrl-C on to every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
