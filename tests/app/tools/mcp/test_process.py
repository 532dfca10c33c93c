"""Servers that outlived their owner are ended, and no other process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from app.tools.mcp.process import OWNER_VARIABLE, end_orphans, owner_mark

_SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


@contextmanager
def sleeping(mark: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-c", _SLEEPS]
    environment = {"PATH": "", **({OWNER_VARIABLE: mark} if mark else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its environment is that of the new program from here on
        try:
            yield process
        finally:
            process.kill()


def mark_of_the_dead() -> str:
    with sleeping("") as process:
        started_s = psutil.Process(process.pid).create_time()
    return f"{process.pid}-{started_s:.0f}"


def test_a_server_whose_owner_is_gone_is_ended() -> None:
    with sleeping(mark_of_the_dead()) as process:
        assert end_orphans() >= 1
        process.wait()


def test_the_number_of_an_owner_may_be_used_again() -> None:
    number = owner_mark().partition("-")[0]
    with sleeping(f"{number}-1") as process:
        assert end_orphans() >= 1
        process.wait()


@pytest.mark.parametrize("mark", ["", "own", "something else", "-1", "²-1", "1-x"])
def test_every_other_process_is_left_alone(mark: str) -> None:
    with sleeping(owner_mark() if mark == "own" else mark) as process:
        end_orphans()
        assert process.poll() is None
