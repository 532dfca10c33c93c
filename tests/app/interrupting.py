"""Ctrl-C while a child of a command works."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from quantizer.system.process import python_command
from tests.patience import PATIENCE_S

__all__ = ["interrupt"]


def interrupt(environment: Mapping[str, str], folder: Path, *arguments: str) -> None:
    """Run localllm in `folder`, which it also takes for its temporary one, and interrupt it once it has a child.

    Asserts that it ends as it should, without a traceback, and that its children end with it.
    """
    process = subprocess.Popen(
        python_command("app.cli.main", *arguments),
        env={**environment, "TMPDIR": str(folder)},
        cwd=folder,
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    watched = psutil.Process(process.pid)
    while not (children := watched.children()):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]
