"""Ending a process with all that it started: in order, and whatever it ignores."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from quantizer.system import process_tree
from quantizer.system.process import detached_process_options
from quantizer.system.process_tree import ChildWatch, Excess, ProcessTree

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the programs of these tests take signals")

_IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
_GRANDCHILD = f"{_IGNORES}import time; time.sleep(100)"
_PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {grandchild!r}], start_new_session={apart})
print(child.pid, flush=True)
"""


def parent(*, apart: bool) -> str:
    return _PARENT.format(grandchild=_GRANDCHILD, apart=apart)


async def started(program: str) -> tuple[Process, ProcessTree]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, **detached_process_options()
    )
    return process, ProcessTree(process.pid, lambda: process.returncode is not None)


async def first_line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


async def is_gone(process_id: int) -> bool:
    for _ in range(200):
        if not psutil.pid_exists(process_id) or psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize(("then", "status"), [("sys.exit(3)", 3), ("time.sleep(100)", 9)])
async def test_a_process_that_goes_on_without_input_is_asked_before_it_is_killed_and_no_other_gets_a_signal(
    then: str, status: int
) -> None:
    asked = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9));"
    process, tree = await started(f"{asked} print(flush=True); sys.stdin.read(); {then}")
    await first_line(process)
    assert process.stdin is not None
    await tree.end(process.stdin.close)
    assert process.returncode == status


@pytest.mark.parametrize("apart", [False, True], ids=["in the group", "in a group of its own"])
async def test_one_that_ignores_all_is_killed_with_what_it_started(apart: bool) -> None:
    process, tree = await started(f"{_IGNORES}{parent(apart=apart)}time.sleep(100)")
    grandchild = int(await first_line(process))
    await tree.end()
    assert process.returncode == -9
    assert await is_gone(grandchild)


async def test_what_left_the_group_is_ended_also_after_a_process_that_ends_by_itself_when_asked() -> None:
    process, tree = await started(f"{parent(apart=True)}sys.stdin.read()")
    grandchild = int(await first_line(process))
    assert process.stdin is not None
    await tree.end(process.stdin.close)
    assert process.returncode == 0
    assert await is_gone(grandchild)


async def test_the_group_of_a_process_that_has_ended_is_ended() -> None:
    process, tree = await started(parent(apart=False))
    grandchild = int(await first_line(process))
    await tree.ended_within(20)  # `process.wait` would wait for the grandchild, which has the pipe too
    assert process.returncode == 0
    await tree.end()
    assert await is_gone(grandchild)


async def test_cancelling_kills_at_once() -> None:
    process, tree = await started(f"{_IGNORES}{parent(apart=False)}time.sleep(100)")
    grandchild = int(await first_line(process))
    ending = asyncio.create_task(tree.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert await process.wait() == -9
    assert await is_gone(grandchild)


@pytest.mark.parametrize("is_now", [True, False])
async def test_without_groups_of_processes_the_descendants_are_ended(
    monkeypatch: pytest.MonkeyPatch, is_now: bool
) -> None:
    monkeypatch.setattr(process_tree, "_signal_group", lambda _process_id, _name: False)  # as on Windows
    process, tree = await started(f"{parent(apart=False)}time.sleep(100)")
    grandchild = int(await first_line(process))
    if is_now:
        tree.kill()
    else:
        await tree.end()
    assert await process.wait() == -9
    assert await is_gone(grandchild)


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


@pytest.mark.parametrize(
    ("program", "limits", "excess"),
    [
        ("while True: pass", {"timeout_s": 0.3}, Excess.TIME),
        ("import time; time.sleep(600)", {"timeout_s": 0.2}, Excess.TIME),  # waiting may last ten times as long
        (
            "import time; data = bytearray(b'x') * (200 << 20); time.sleep(600)",
            {"timeout_s": 60, "max_bytes": 100 << 20},
            Excess.MEMORY,
        ),
    ],
)
def test_a_child_that_computes_or_waits_too_long_or_takes_too_much_memory_is_killed(
    children: list[subprocess.Popen[bytes]], program: str, limits: dict[str, Any], excess: Excess
) -> None:
    child = start(children, program)
    with ChildWatch(child, **limits) as watch:
        assert child.wait() != 0
    assert watch.excess is excess


@pytest.mark.slow
def test_a_child_that_is_allowed_each_step_is_ended_by_what_it_may_take_in_all(
    children: list[subprocess.Popen[bytes]],
) -> None:
    child = start(children, "while True: pass")
    with ChildWatch(child, timeout_s=60) as watch:
        watch.allow_in_all(0.3)
        while child.poll() is None:
            watch.allow(60)
            time.sleep(0.01)
    assert watch.excess is Excess.TIME
    assert watch.used_s() >= 0.2


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
