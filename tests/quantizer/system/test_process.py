from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.system.errors import EngineError, WrongProcessorError
from quantizer.system.process import (
    ChildProcess,
    OwnedProcess,
    StderrTail,
    exit_error,
    is_illegal_instruction,
    run_to_exit,
)
from tests.patience import PATIENCE_S


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@given(st.text(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_the_stderr_tail_does_not_depend_on_where_the_stream_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    whole, pieces = StderrTail(), StderrTail()
    whole.feed(data)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        pieces.feed(data[start:stop])
    assert pieces.lines == whole.lines


def test_the_stderr_tail_keeps_fifty_lines_without_control_characters() -> None:
    tail = StderrTail()
    tail.feed(b"".join(b"\x1b[31mline %d\x07\n" % number for number in range(80)) + b"open \xff")
    assert tail.lines[0] == "[31mline 30"
    assert len(tail.lines) == 51
    assert tail.lines[-1].startswith("open")


def test_the_stderr_tail_contains_no_folders() -> None:
    tail = StderrTail()
    tail.feed(b"/tmp/pip-x/ggml.c:12: fatal error\nfailed to open '/home/me/my models/a.gguf'")
    assert tail.lines == ("ggml.c:12: fatal error", "failed to open 'a.gguf'")


def test_a_line_without_end_does_not_grow() -> None:
    tail = StderrTail()
    for _ in range(100):
        tail.feed(b"x" * 65536)
    assert tail.lines == ("x" * 500,)


async def test_a_child_for_which_the_system_has_no_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_command: str, **_options: object) -> None:
        raise RuntimeError("can't start new thread")  # asyncio waits for each child in a thread

    monkeypatch.setattr("asyncio.create_subprocess_exec", refuse)
    with pytest.raises(EngineError, match="The engine process cannot be started: can't start new thread"):
        await ChildProcess.start(python(""), "engine process")


@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces limits of memory")
def test_a_process_that_died_for_lack_of_memory_within_a_limit_is_reported_as_that() -> None:
    program = """
import resource
from quantizer.system.process import StderrTail, exit_error
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
print(exit_error("engine process", 1, StderrTail(b"RuntimeError: can't start new thread\\n"), "Try again."))
"""
    status, printed, _ = run_to_exit(python(program), 60)
    assert status == 0
    assert printed.startswith("Not enough memory: the engine process needs more and may use 300 MiB (ulimit -v).")


async def test_a_line_that_is_too_long_becomes_a_note() -> None:
    child = await ChildProcess.start(python("print('x' * 500); print('short')"), "child", max_line_bytes=100)
    assert [line async for line in child.lines()] == [b"[a line that was too long was dropped]\n", b"short\n"]
    assert await child.end() == 0


async def test_a_child_that_ignores_the_end_of_its_input_is_killed() -> None:
    child = await ChildProcess.start(python("import time; print('up', flush=True); time.sleep(60)"), "child")
    assert [await anext(child.lines())] == [b"up\n"]
    assert await child.end(grace_s=0.01) < 0
    await child.send({"lost": 1})
    assert "SIGKILL" in exit_error("child", -9, child.stderr, "").cause


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
async def test_a_killed_child_takes_what_it_started_with_it() -> None:
    program = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    child = await ChildProcess.start(python(program), "child")
    grandchild = psutil.Process(int(await anext(child.lines())))
    child.kill()
    await child.end()
    assert psutil.wait_procs([grandchild], timeout=PATIENCE_S)[1] == []


async def test_a_child_reports_its_stderr_while_it_runs() -> None:
    texts: list[str] = []
    command = python("import sys; print('oops', file=sys.stderr)")
    child = await ChildProcess.start(command, "child", on_stderr=texts.append)
    assert await child.end() == 0
    assert ("".join(texts), child.stderr.lines) == ("oops\n", ("oops",))


async def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"The worker cannot be started: No such file"):
        await ChildProcess.start(["/nowhere/at/all"], "worker")


async def test_a_released_process_outlives_its_owner(tmp_path: Path) -> None:
    program = "import sys; print('up', flush=True); sys.stdin.read(); open(sys.argv[1], 'w').write('done')"
    with (tmp_path / "log").open("wb") as log:
        process = OwnedProcess([*python(program), str(tmp_path / "file")], {}, log)
    assert await process.read_line(30) == b"up\n"
    child = psutil.Process(process._process.pid)
    process.release()
    psutil.wait_procs([child], timeout=PATIENCE_S)
    assert (tmp_path / "file").read_text() == "done"


async def test_an_owned_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = OwnedProcess(python("import time; time.sleep(60)"), {}, log)
    await process.end(grace_s=0.01)
    assert process._process.returncode is not None


def test_a_command_runs_to_its_exit() -> None:
    status, output, stderr = run_to_exit(python("import sys; print('out'); sys.exit('err')"), 30)
    assert (status, output.strip(), stderr.lines) == (1, "out", ("err",))
    with pytest.raises(TimeoutError):
        run_to_exit(python("import time; time.sleep(60)"), 0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no jobs to stop")
def test_a_job_stops_with_what_started_it_but_without_its_children() -> None:
    stops = "import subprocess, sys; from quantizer.system.process import stop_job; "
    stops += "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); stop_job(); "
    stops += "child.kill(); child.wait(); print('resumed')"
    starts = f"import subprocess; subprocess.run({python(stops)!r})"
    with subprocess.Popen(python(starts), stdout=subprocess.PIPE, process_group=0) as starter:
        assert starter.stdout is not None
        child = psutil.Process(int(starter.stdout.readline()))
        _, status = os.waitpid(starter.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        job = child.parent()
        assert job is not None
        while job.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_SLEEPING
        os.killpg(starter.pid, signal.SIGCONT)
        assert starter.stdout.read() == b"resumed\n"


@pytest.mark.parametrize(("status", "name"), [(-4, "SIGILL"), (0xC000001D, "0xC000001D")])
def test_an_instruction_that_is_missing_names_the_build_and_the_command_that_makes_another(
    status: int, name: str
) -> None:
    error = exit_error("engine process", status, StderrTail(b"noise"), "Send the request again.", runs_llama=True)
    assert isinstance(error, WrongProcessorError)
    assert error.cause.startswith("llama.cpp was built for another processor: the engine process died")
    assert name in error.cause
    assert error.remedy.startswith("Build it for this one: ")
    assert "llama-cpp-python" in error.remedy
    assert "Send" not in error.remedy
    assert is_illegal_instruction(status)
    assert not isinstance(exit_error("search", status, StderrTail(), "Try again."), WrongProcessorError)
    assert not isinstance(exit_error("engine", -11, StderrTail(), "Try again.", runs_llama=True), WrongProcessorError)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (0xC0000005, "access violation, 0xC0000005"),
        (0xC00000FD, "stack overflow, 0xC00000FD"),
        (0xC000001D, "illegal instruction, 0xC000001D"),
        (0xC0000409, "abort or buffer overrun, 0xC0000409"),
        (0xC0000999, "exit status 3221227929"),
        (7, "exit status 7"),
        (-11, "SIGSEGV"),
        (-99, "signal 99"),
    ],
)
def test_how_a_process_died_has_a_name_on_each_system(status: int, name: str) -> None:
    assert f"The search died ({name})." in exit_error("search", status, StderrTail(), "Try again.").cause
