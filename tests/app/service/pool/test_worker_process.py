from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.service.pool.worker_process import LastWords, WorkerProcess
from quantizer.errors import EngineError


@given(st.text(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_last_words_do_not_depend_on_where_the_stream_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    whole, pieces = LastWords(), LastWords()
    whole.feed(data)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        pieces.feed(data[start:stop])
    assert pieces.lines == whole.lines


def test_last_words_keep_fifty_lines_without_control_characters() -> None:
    words = LastWords()
    words.feed(b"".join(b"\x1b[31mline %d\x07\n" % number for number in range(80)) + b"open \xff")
    assert words.lines[0] == "[31mline 30"
    assert len(words.lines) == 51
    assert words.lines[-1].startswith("open")


def test_last_words_tell_of_no_folders() -> None:
    words = LastWords()
    words.feed(b"/tmp/pip-x/ggml.c:12: fatal error\nfailed to open '/home/me/my models/a.gguf'")
    assert words.lines == ("ggml.c:12: fatal error", "failed to open 'a.gguf'")


def test_a_line_without_end_does_not_grow() -> None:
    words = LastWords()
    for _ in range(100):
        words.feed(b"x" * 65536)
    assert words.lines == ("x" * 500,)


async def _death_of(program: str) -> EngineError:
    worker = await WorkerProcess.start([sys.executable, "-c", program])
    try:
        assert [message async for message in worker.messages()] == []
    finally:
        death = await worker.end(0.5)
    return death


async def test_a_worker_that_dies_is_reported_with_its_last_words() -> None:
    death = await _death_of("import sys; sys.exit('GGML_ASSERT(n > 0) failed')")
    assert death.cause == "The engine process died (exit status 1); its last words: GGML_ASSERT(n > 0) failed."


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
async def test_a_worker_ended_by_a_signal_is_reported_by_its_name() -> None:
    death = await _death_of("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "SIGSEGV" in death.cause


async def test_a_worker_that_closes_its_pipe_and_lives_on_is_killed() -> None:
    death = await _death_of("import os, time; os.close(1); time.sleep(60)")
    assert death.cause.startswith("The engine process died")


async def test_a_worker_that_writes_something_else_is_an_engine_error() -> None:
    worker = await WorkerProcess.start([sys.executable, "-c", "print('llama.cpp says hello')"])
    try:
        with pytest.raises(EngineError, match="invalid message"):
            await anext(worker.messages())
    finally:
        await worker.end(0.5)


async def test_a_program_that_cannot_be_started_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="cannot be started"):
        await WorkerProcess.start(["/nonexistent/python"])
