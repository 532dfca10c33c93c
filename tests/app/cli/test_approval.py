"""The question before a call at a terminal: a letter and Enter, and nothing that was typed before."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import sys
import threading
import time

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

import fcntl
import termios

from app.cli import approval
from app.cli.approval import TerminalApprover, allowing_option, fill_at_terminal
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.server_requests import Form, FormField
from app.tools.tool import BoundCommand, Effect, Preview
from tests.app.tools.fake import fake_tool

PROMPT = "[x] never: "
DIFF = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\x1b[2J\n+new"
WRITE = ApprovalQuestion(fake_tool("write_file", Effect.WRITE, "files"), "{}", Preview("diff", "write x", DIFF))
RUN = ApprovalQuestion(
    fake_tool("run_command", Effect.RUN, "commands"),
    "{}",
    Preview("command", "run ls", "ls", BoundCommand(("ls", "a b"), "/bin/ls", "/bin/ls", "/x")),
)


class Terminal:
    """A pseudo-terminal as the process' own: what is written to `keys` is typed there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, self.end = os.openpty()
        self._stream = os.fdopen(self.end, "r")
        monkeypatch.setattr(sys, "stdin", self._stream)

    def types(self, text: str) -> None:
        """Type `text`, and wait until the terminal has it: what is written to the other end takes a moment."""
        n_before = self.n_waiting
        os.write(self.keys, text.encode())
        while "\n" in text and self.n_waiting == n_before:  # whoever reads it does so in this thread, later
            time.sleep(0.001)

    @property
    def n_waiting(self) -> int:
        """Bytes of whole lines that nobody has read."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.end, termios.FIONREAD, waiting)
        return waiting[0]

    def close(self) -> None:
        os.close(self.keys)
        self._stream.close()


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal(monkeypatch)
    yield terminal
    terminal.close()


async def asked(question: ApprovalQuestion, capsys, text: str) -> asyncio.Task[Decision]:
    """Ask, and wait until the question is printed."""
    asking = asyncio.create_task(TerminalApprover().ask(question))
    await printed(capsys, text)
    return asking


async def printed(capsys, *texts: str) -> None:
    """Wait until all of `texts` are printed from now on."""
    seen = ""
    while not all(text in seen for text in texts):
        await asyncio.sleep(0.01)
        seen += capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("y\n", Decision.ONCE),
        ("yes\n", Decision.ONCE),
        (" T \n", Decision.TOOL),
        ("s\n", Decision.SERVER),
        ("n\n", Decision.DENY),
        ("NO\n", Decision.DENY),
        ("x\n", Decision.NEVER),
        ("\x04", Decision.DENY),
    ],
)
async def test_a_letter_and_enter_decide(terminal, capsys, line, decision):
    asking = await asked(WRITE, capsys, PROMPT)
    terminal.types(line)
    assert await asking is decision


@pytest.mark.parametrize(("line", "decision"), [("y\n", Decision.ONCE), ("\x04", Decision.DENY)])
async def test_a_terminal_that_the_event_loop_cannot_watch_is_asked_too(terminal, capsys, monkeypatch, line, decision):
    """As the kqueue of macOS, which takes no /dev/tty."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    asking = await asked(WRITE, capsys, PROMPT)
    terminal.types(line)
    assert await asking is decision


async def test_anything_else_is_asked_again(terminal, capsys):
    asking = await asked(RUN, capsys, PROMPT)
    terminal.types("s\n")  # a command is never allowed by its server
    await printed(capsys, "Type one of the letters", PROMPT)
    terminal.types("\n")
    await printed(capsys, "Type one of the letters", PROMPT)
    terminal.types("t\n")
    assert await asking is Decision.TOOL


async def test_what_was_typed_before_the_question_answers_nothing(terminal, capsys):
    terminal.types("y\ny\n")
    asking = await asked(WRITE, capsys, PROMPT)
    assert terminal.n_waiting == 0
    terminal.types("n\n")
    assert await asking is Decision.DENY


async def test_what_is_typed_while_the_question_appears_answers_nothing(terminal, capsys):
    asking = await asked(WRITE, capsys, "Allow write x?")
    terminal.types("y\n")
    await printed(capsys, PROMPT)
    assert terminal.n_waiting == 0
    assert not asking.done()
    terminal.types("n\n")
    assert await asking is Decision.DENY


async def test_of_pasted_lines_none_after_a_wrong_answer_counts(terminal, capsys):
    asking = await asked(WRITE, capsys, PROMPT)
    terminal.types("what is this\ny\ny\n")
    await printed(capsys, "Type one of the letters", PROMPT)
    assert not asking.done()
    terminal.types("n\n")
    assert await asking is Decision.DENY


async def test_a_question_that_is_withdrawn_leaves_the_input_to_others(terminal, capsys):
    asking = await asked(WRITE, capsys, PROMPT)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    terminal.types("next question\n")
    assert await asyncio.to_thread(sys.stdin.readline) == "next question\n"
    assert threading.active_count() < 20


async def test_the_question_shows_the_diff_without_control_characters(terminal, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    asking = asyncio.create_task(TerminalApprover().ask(WRITE))
    printed = ""
    while "[x] never" not in printed:
        await asyncio.sleep(0.01)
        printed += capsys.readouterr().err
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert "\x1b" not in printed
    for text in ("Allow write x?", "files: write_file", "-old[2J", "+new", "[t] write_file in this chat"):
        assert text in printed


async def test_without_a_terminal_a_call_is_denied_and_the_option_for_it_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(approval, "_TERMINAL", "/nowhere")
    assert await TerminalApprover().ask(WRITE) is Decision.DENY
    assert "--allow files/write_file would allow it." in capsys.readouterr().err
    assert await TerminalApprover().ask(RUN) is Decision.DENY
    assert allowing_option(RUN) in capsys.readouterr().err


def test_the_option_for_a_command_is_one_word_for_a_shell():
    assert allowing_option(RUN) == """--allow-command 'ls '"'"'a b'"'"''"""


FORM = Form(
    "notes",
    "Who are you?\x1b[2J",
    (
        FormField("name", "Your name", is_required=True),
        FormField("age", "Age", kind="integer", default="36"),
        FormField("color", "Color", kind="choice", options={"r": "Red"}),
    ),
)


async def test_a_form_is_filled_in_line_by_line(terminal, capsys):
    filling = asyncio.create_task(fill_at_terminal(FORM, lambda: None))
    await printed(capsys, "notes asks:", "Your name: (text)")
    terminal.types("\n")
    await printed(capsys, "Your name must be filled in.", "Your name: (text)")
    terminal.types("Ada\n")
    await printed(capsys, "Age: (integer; may stay empty) [36]")
    terminal.types("\n")
    await printed(capsys, "Color: (one of: Red; may stay empty)")
    terminal.types("\n")
    assert await filling == {"name": "Ada", "age": 36}


@pytest.mark.parametrize("keys", [".\n", "\x04"])
async def test_a_dot_or_the_end_fills_nothing_in(terminal, capsys, keys):
    filling = asyncio.create_task(fill_at_terminal(FORM, lambda: None))
    await printed(capsys, "Your name: (text)")
    terminal.types(keys)
    assert await filling is None


async def test_without_a_terminal_nothing_is_filled_in(monkeypatch):
    monkeypatch.setattr("app.cli.approval.sys.stdin", None)
    monkeypatch.setattr("app.cli.approval._TERMINAL", "/nowhere")
    assert await fill_at_terminal(FORM, lambda: None) is None
