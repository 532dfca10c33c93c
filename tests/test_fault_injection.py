from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.battery.faults.injector import ERRORS, STATE, Call, Fault, Injector, arm, is_possible
from tests.battery.faults.sweep import drawn_plans, each_call, every_plan, pairs

POSSIBLE = pytest.mark.skipif(bool(is_possible()), reason=is_possible())

WRITES = """
import os, subprocess, sys
from pathlib import Path
def tried(what, act):
    try:
        act()
        print(what, "done")
    except OSError as error:
        print(what, error.strerror)
root, elsewhere = map(Path, sys.argv[1:])
tried("elsewhere", lambda: elsewhere.joinpath("a").write_text("a"))
for number in (1, 2, 3):
    tried(f"here {number}", lambda: root.joinpath(f"a{number}").write_text("a"))
tried("moved", lambda: root.joinpath("a1").replace(root / "b"))
tried("child", lambda: subprocess.run([sys.executable, "-c", "open(__import__('sys').argv[1], 'w').write('a')",
                                       str(root / "c")], check=True))
"""


def _written(tmp_path: Path, *faults: Fault) -> tuple[list[str], list[Call]]:
    (root := tmp_path / "root").mkdir()
    (made := tmp_path / "made").mkdir()
    injector = Injector(made, root)
    injector.begin(faults, logs_all=not faults)
    arm(injector.environment[STATE])
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(root), str(tmp_path)],
        env={**os.environ, **injector.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), injector.end()


@pytest.mark.slow
@POSSIBLE
def test_without_a_fault_each_call_under_the_root_is_counted_across_processes(tmp_path: Path) -> None:
    lines, calls = _written(tmp_path)
    assert [line.rpartition(" ")[2] for line in lines] == ["done"] * 6
    written = [(call.number, Path(call.path).name) for call in calls if call.kind == "write"]
    assert written == [(1, "a1"), (2, "a2"), (3, "a3"), (4, "c")]
    assert [Path(call.path).name for call in calls if call.kind == "rename"] == ["b"]
    assert [call.kind for call in calls].count("fork") == 1


@pytest.mark.slow
@POSSIBLE
def test_the_nth_call_fails_with_its_error_and_the_next_does_not(tmp_path: Path) -> None:
    lines, calls = _written(tmp_path, Fault("write", 2, errno.ENOSPC), Fault("rename", 1, errno.EROFS))
    assert lines[1:5] == ["here 1 done", "here 2 No space left on device", "here 3 done", "moved Read-only file system"]
    assert [(call.kind, call.number, call.error) for call in calls] == [
        ("write", 2, errno.ENOSPC),
        ("rename", 1, errno.EROFS),
    ]


@pytest.mark.slow
@POSSIBLE
def test_a_fault_that_lasts_is_met_by_all_later_calls_and_by_no_file_elsewhere(tmp_path: Path) -> None:
    lines, calls = _written(tmp_path, Fault("create", 3, errno.EMFILE, lasts=True), Fault("fork", 1, errno.EAGAIN))
    assert lines == [
        "elsewhere done",
        "here 1 done",
        "here 2 done",
        "here 3 Too many open files",
        "moved done",
        "child Resource temporarily unavailable",
    ]
    assert [call.kind for call in calls] == ["create", "fork"]


@pytest.mark.parametrize("words", ["write:17:ENOSPC", "create:3+:EROFS"])
def test_a_fault_is_written_as_it_is_read(words: str) -> None:
    assert str(Fault.parse(words)) == words


CALLS = [
    Call("write", 1, 9, 0, "write", "/r/a.1.tmp"),
    Call("write", 2, 9, 0, "write", "/r/a.2.tmp"),
    Call("rename", 1, 9, 0, "rename", "/r/b"),
]
EACH = {(kind, error) for kind in ("write", "rename") for error in ERRORS[kind]}


def test_every_place_meets_each_of_its_errors_once_and_those_that_can_last_also_lasting() -> None:
    planned = [fault for (fault,) in every_plan(CALLS, tuple(ERRORS), random.Random(1))]
    assert sorted((it.kind, it.error) for it in planned if not it.lasts) == sorted(EACH)
    assert {(it.kind, it.error) for it in planned if it.lasts} == {it for it in EACH if it[1] != errno.EINTR}


def test_each_call_has_its_turn_once_and_of_a_place_with_many_its_first_and_last() -> None:
    many = [Call("read", number, 9, 0, "read", "/r/model") for number in range(1, 101)]
    planned = [fault for (fault,) in each_call([*CALLS, *many], tuple(ERRORS), 5, random.Random(1))]
    assert sorted(it.number for it in planned if it.kind == "write") == [1, 2]
    assert [it.number for it in planned if it.kind == "read"] == [1, 26, 51, 75, 100]
    assert len({it.error for it in planned if it.kind == "read"}) == 2
    assert not any(it.lasts for it in planned)
    assert list(each_call(CALLS, ("rename",), 5, random.Random(1))) == [(planned[2],)]


def test_pairs_are_two_faults_of_what_was_called() -> None:
    drawn = list(itertools.islice(pairs(CALLS, tuple(ERRORS), random.Random(1)), 50))
    assert {len(each) for each in drawn} == {2}
    assert {(it.kind, it.number) for each in drawn for it in each} == {("write", 1), ("write", 2), ("rename", 1)}
    assert list(pairs([], tuple(ERRORS), random.Random(1))) == []


def test_drawn_faults_come_once_lasting_and_in_pairs_and_none_is_left_out() -> None:
    planned = list(itertools.islice(drawn_plans(CALLS, tuple(ERRORS), random.Random(1)), 5 * len(EACH)))
    assert {(faults[0].kind, faults[0].error) for faults in planned} == EACH
    assert {len(faults) for faults in planned} == {1, 2}
    assert any(faults[0].lasts for faults in planned)
    assert list(drawn_plans([], tuple(ERRORS), random.Random(1))) == []


@POSSIBLE
@pytest.mark.slow
def test_journeys_that_start_no_engine_survive_faults_of_the_system() -> None:
    guide = Path(__file__).parents[1] / "assets" / "guide" / "guide-Q8_0.gguf"
    command = [sys.executable, "-m", "tests.battery.faults.sweep", str(guide), "--attempts", "30"]
    done = subprocess.run(
        [*command, "--only", "listed,import,pull,updated", "--seed", "49"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
