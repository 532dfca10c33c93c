from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from quantizer.child_watch import ChildWatch, Excess


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def start(children: list[subprocess.Popen[bytes]], program: str) -> subprocess.Popen[bytes]:
    children.append(subprocess.Popen([sys.executable, "-c", program]))
    return children[-1]


def test_a_child_that_computes_too_long_is_killed(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(children, "while True: pass")
    with ChildWatch(child, timeout_s=0.3) as watch:
        assert child.wait() != 0
    assert watch.excess is Excess.TIME


def test_so_is_one_that_waits_ten_times_as_long(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(children, "import time; time.sleep(600)")
    with ChildWatch(child, timeout_s=0.2) as watch:
        assert child.wait() != 0
    assert watch.excess is Excess.TIME


def test_and_one_that_takes_too_much_memory(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(children, "import time; data = bytearray(b'x') * (200 << 20); time.sleep(600)")
    with ChildWatch(child, timeout_s=60, max_bytes=100 << 20) as watch:
        assert child.wait() != 0
    assert watch.excess is Excess.MEMORY


def test_a_child_that_ends_by_itself_or_is_left_in_time_is_not_killed(children: list[subprocess.Popen[bytes]]) -> None:
    with ChildWatch(start(children, "pass"), timeout_s=60) as watch:
        assert children[-1].wait() == 0
    assert watch.excess is None
    child = start(children, "input()")
    with ChildWatch(child, timeout_s=60):
        pass
    assert child.poll() is None


def test_a_child_that_died_has_taken_too_much_of_nothing(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(children, "pass")
    child.wait()
    with ChildWatch(child, timeout_s=0.001) as watch:
        watch._thread.join()
    assert watch.excess is None
