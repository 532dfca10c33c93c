"""`python -m tests.app.service_process ARGUMENTS`: the command line as it is, but for the measured memory bandwidth.

A service that plans reads a gibibyte seven times: 2.5 s of processor time, where 16 MiB do for a test.
"""

from __future__ import annotations

from functools import partial

import app.engine.load.machine as machine
from app.cli.main import main
from offload.devices.bandwidth import measure_read_bandwidth

if __name__ == "__main__":
    machine.measure_read_bandwidth = partial(measure_read_bandwidth, n_bytes=16 << 20)
    main()
