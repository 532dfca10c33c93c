"""The conversation, typed by a person: through a pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest
from running import RunningService

from app.processes import python_module

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

import pty
import select

CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = ">>> "


class Typist:
    """Types into `localllm run` and reads what it prints."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._terminal, child = pty.openpty()
        self._unread = ""
        self.process = subprocess.Popen(
            python_module("app.cli.main", "run", "--stats"),
            env={**environment, "TERM": "dumb"},
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(child)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, words: str, timeout_s: float = 20.0) -> str:
        """Return what is shown up to and with `words`; the rest is kept for the next call."""
        deadline_s = time.monotonic() + timeout_s
        while words not in self._unread:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"no {words!r} in {self._unread!r}"
            self._unread += os.read(self._terminal, 4096).decode("utf-8", "replace")
        seen, _, self._unread = self._unread.partition(words)
        return seen + words

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)


def _take_terminal() -> None:
    """Make the terminal the child's own, so that Ctrl-C reaches it as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def typist(environment: Mapping[str, str], service: RunningService) -> Iterator[Typist]:
    typist = Typist({**environment, "LOCALLLM_PORT": service.url.rpartition(":")[2]})
    try:
        yield typist
    finally:
        typist.close()


def test_a_person_asks_commands_and_leaves(typist: Typist) -> None:
    typist.read_until(PROMPT)
    typist.type("hello\n")
    assert "tok/s" in typist.read_until(PROMPT)
    typist.type("/?\n")
    assert "/set system TEXT" in typist.read_until(PROMPT)
    typist.type("/frobnicate\n")
    assert "is no command" in typist.read_until(PROMPT)
    typist.type('"""\ntwo\nlines\n"""\n')
    assert "tok/s" in typist.read_until(PROMPT)
    typist.type("/bye\n")
    assert typist.process.wait(timeout=10) == 0


def test_each_question_carries_the_conversation_until_it_is_cleared(typist: Typist) -> None:
    def n_prompt_tokens() -> int:
        typist.type("hello\n")
        shown = typist.read_until("tokens in")
        typist.read_until(PROMPT)
        return int(shown.rpartition(" tokens in")[0].rpartition(" ")[2])

    typist.read_until(PROMPT)
    first, second = n_prompt_tokens(), n_prompt_tokens()
    assert second > first
    typist.type("/clear\n")
    typist.read_until(PROMPT)
    assert n_prompt_tokens() == first
    typist.type("/set system Be brief.\n")
    typist.read_until(PROMPT)
    assert n_prompt_tokens() == first + len("<system>Be brief.\n")


def test_ctrl_c_stops_an_answer_and_the_next_question_is_answered(typist: Typist) -> None:
    typist.read_until(PROMPT)
    for _ in range(20):  # a few answers of the fake engine are over before the key is pressed
        typist.type("a question with a long answer\n")
        typist.read_until("answer\r\n")
        typist.type(CTRL_C)
        if "[stopped]" in typist.read_until(PROMPT):
            break
    else:
        pytest.fail("no answer was stopped")
    typist.type("hello\n")
    assert "tok/s" in typist.read_until(PROMPT)
    typist.type(CTRL_D)
    assert typist.process.wait(timeout=10) == 0
