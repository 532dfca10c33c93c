from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.errors import EngineError, StorageError
from quantizer.process import Message, StderrTail, run_child


def child(body: str) -> list[str]:
    """A child whose work is `body`, which may use `request` and `send`."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    program = (
        "import os, sys, time\nfrom quantizer.process import serve_request\nfrom quantizer.errors import StorageError\n"
        f"def work(request, send):\n{lines}\nsys.exit(serve_request(work))"
    )
    return [sys.executable, "-c", program]


def said(body: str, **request: object) -> Iterator[Message]:
    return run_child(child(body), request, "process that works", "Try again.")


def test_a_request_goes_in_and_lines_come_out() -> None:
    assert list(said("send({'n': request['n'] + 1})\nsend({'n': 0})", n=4)) == [{"n": 5}, {"n": 0}]


def test_what_native_code_prints_gets_between_no_lines() -> None:
    assert list(said("os.write(1, b'hello ')\nsend({})\nprint('there')")) == [{}]


def test_a_childs_error_is_raised_in_the_parent() -> None:
    with pytest.raises(StorageError, match=r"Full\. Make room\."):
        list(said("send({})\nraise StorageError('Full.', 'Make room.')"))


def test_a_child_that_dies_is_reported_with_its_last_output() -> None:
    with pytest.raises(
        EngineError,
        match=r"process that works died \(exit status 7\); its last output: farewell \| world\. Try again\.",
    ):
        list(said("send({})\nprint('farewell\\n  world', file=sys.stderr, flush=True)\nos._exit(7)"))


def test_its_last_output_contains_no_folders() -> None:
    native = "/tmp/pip-x/ggml.c:12: GGML_ASSERT(a / b) failed"
    with pytest.raises(
        EngineError, match=r"status 7\); its last output: ggml\.c:12: GGML_ASSERT\(a / b\) failed\. Try again\."
    ):
        list(said(f"print({native!r}, file=sys.stderr, flush=True)\nos._exit(7)"))


@pytest.mark.parametrize("line", ["ggml: hello", "[1]"])
def test_invalid_json_is_an_error(line: str) -> None:
    command = [sys.executable, "-c", f"print('{line}')"]
    with pytest.raises(EngineError, match="invalid JSON"):
        list(run_child(command, {}, "process that works", "Try again."))


def test_leaving_early_ends_the_child() -> None:
    lines = said("send({'pid': os.getpid()})\ntime.sleep(60)")
    pid = next(lines)["pid"]
    lines.close()
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
    begun = time.monotonic()
    process.stdin.close()
    assert process.wait(timeout=20) == 1
    assert time.monotonic() - begun < 10
    process.stdout.close()


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
