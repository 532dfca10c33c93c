"""A child for one request: lines go both ways, and whatever ends it is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from quantizer.system.child_request import Message, open_child, run_child
from quantizer.system.errors import EngineError, StorageError
from tests.patience import PATIENCE_S


def child(body: str) -> list[str]:
    """A child whose work is `body`, which may use `request` and `send`."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    program = (
        "import os, sys, time\n"
        "from quantizer.system.child_request import serve_request\nfrom quantizer.system.errors import StorageError\n"
        f"def work(request, send):\n{lines}\nsys.exit(serve_request(work))"
    )
    return [sys.executable, "-c", program]


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def messages(body: str, **request: object) -> Iterator[Message]:
    return run_child(child(body), request, "process that works", "Try again.")


def test_a_request_goes_in_and_lines_come_out() -> None:
    assert list(messages("send({'n': request['n'] + 1})\nsend({'n': 0})", n=4)) == [{"n": 5}, {"n": 0}]


def test_what_native_code_prints_gets_between_no_lines() -> None:
    assert list(messages("os.write(1, b'hello ')\nsend({})\nprint('there')")) == [{}]


def test_a_childs_error_is_raised_in_the_parent() -> None:
    with pytest.raises(StorageError, match=r"Full\. Make room\."):
        list(messages("send({})\nraise StorageError('Full.', 'Make room.')"))


def test_what_the_system_refuses_to_a_child_is_an_error_and_no_traceback() -> None:
    with pytest.raises(EngineError, match=r"Too many open files.*limit on open files"):
        list(messages("import errno\nraise OSError(errno.EMFILE, 'Too many open files')"))


def test_a_child_that_dies_is_reported_with_its_last_output() -> None:
    with pytest.raises(
        EngineError,
        match=r"process that works died \(exit status 7\); its last output: farewell \| world\. Try again\.",
    ):
        list(messages("send({})\nprint('farewell\\n  world', file=sys.stderr, flush=True)\nos._exit(7)"))


def test_its_last_output_contains_no_folders() -> None:
    native = "/tmp/pip-x/ggml.c:12: GGML_ASSERT(a / b) failed"
    with pytest.raises(
        EngineError, match=r"status 7\); its last output: ggml\.c:12: GGML_ASSERT\(a / b\) failed\. Try again\."
    ):
        list(messages(f"print({native!r}, file=sys.stderr, flush=True)\nos._exit(7)"))


@pytest.mark.parametrize("line", ["ggml: hello", "[1]"])
def test_invalid_json_is_an_error(line: str) -> None:
    command = [sys.executable, "-c", f"print('{line}')"]
    with pytest.raises(EngineError, match="invalid JSON"):
        list(run_child(command, {}, "process that works", "Try again."))


def test_leaving_early_ends_the_child() -> None:
    received = messages("send({'pid': os.getpid()})\ntime.sleep(60)")
    pid = next(received)["pid"]
    received.close()
    assert not psutil.pid_exists(pid)


def test_a_child_ends_with_whoever_started_it() -> None:
    process = subprocess.Popen(
        child("send({'pid': os.getpid()})\ntime.sleep(60)"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"{}\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdin.close()
    assert process.wait(timeout=PATIENCE_S) == 1
    process.stdout.close()


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(EngineError, match="The process that works cannot be started: No such file"):
        list(run_child(["/nowhere/at/all"], {}, "process that works", "Try again."))


async def test_beside_an_event_loop_lines_go_both_ways() -> None:
    program = (
        "from queue import SimpleQueue\nfrom quantizer.system.child_request import serve_request\n"
        "queue = SimpleQueue()\n"
        "def work(request, send):\n    send({'n': request['n']})\n    send({'n': queue.get()['n'] + 1})\n"
        "serve_request(work, queue.put)"
    )
    async with open_child(python(program), {"n": 4}, "process that works", "Try again.") as (process, received):
        assert await anext(received) == {"n": 4}
        await process.send({"n": 6})
        assert [message async for message in received] == [{"n": 7}]


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("raise StorageError('Full.', 'Make room.')", StorageError, r"Full\. Make room\."),
        (
            "print('bye', file=sys.stderr, flush=True)\nos._exit(7)",
            EngineError,
            r"exit status 7\); .*: bye\.",
        ),
    ],
)
async def test_beside_an_event_loop_it_is_told_how_a_child_ended(body: str, kind: type[Exception], told: str) -> None:
    async with open_child(child(body), {}, "process that works", "Try again.") as (_, received):
        with pytest.raises(kind, match=told):
            await anext(received)


async def test_leaving_early_ends_the_child_beside_an_event_loop() -> None:
    body = "send({'pid': os.getpid()})\ntime.sleep(60)"
    async with open_child(child(body), {}, "process that works", "Try again.") as (_, received):
        pid = (await anext(received))["pid"]
    assert not psutil.pid_exists(pid)
