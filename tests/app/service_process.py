"""The command line as tests start it: `python -m tests.app.service_process ARGUMENTS` is what users start, but for the
measured memory bandwidth. A service that plans reads hundreds of megabytes seven times, where 16 MiB do for a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from quantizer.system.process import python_command

__all__ = ["start_command"]


def start_command(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command line with piped input and output."""
    command = python_command("tests.app.service_process", *arguments)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _main() -> None:
    import app.engine.load.machine as machine
    from app.cli.main import main
    from offload.devices.bandwidth import measure_read_bandwidth

    machine.measure_read_bandwidth = partial(measure_read_bandwidth, n_bytes=16 << 20)
    main(sys.argv[1:])


if __name__ == "__main__":
    _main()
