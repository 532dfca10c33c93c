"""The question before a call of a tool, at a terminal: printed on stderr, answered by a letter and Enter.

Owns reading the answer. What was typed before the question, and beside an answer that was none, is thrown away, so
that it answers nothing; without a terminal nobody can allow a call, and it is denied.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from app.cli.output.format import styled
from app.cli.output.word_wrap import whole_words
from app.common.terminal import printable_line
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.display import KEYS, LineKind, StyledLine, decision_text, question_lines, question_title
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.tools.server_requests import Form, FormValue

_COLORS: dict[LineKind, str] = {"added": "green", "removed": "red", "place": "cyan"}
ARMED_S = 0.25  # keys that are on their way while a question appears do not answer it
_POLL_S = 0.05  # where a terminal cannot be waited for
_TERMINAL = "CONIN$" if sys.platform == "win32" else "/dev/tty"
_WORDS = {"yes": Decision.ONCE, "no": Decision.DENY}


class TerminalApprover:
    """An `Approver` that asks at the terminal of stdin, or where that is a pipe at the one that the process has.
    `before` is called before it prints anything."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return what the person types; deny where there is no terminal, and say which option would allow it."""
        async with self._one_at_a_time:
            self._before()
            with _opened_terminal() as terminal:
                if terminal is None:
                    _echo(f"Denied, nobody can be asked: {printable_line(question.preview.title)}.")
                    _echo(f"{allowing_option(question)} would allow it.")
                    return Decision.DENY
                _echo(question_title(question), bold=True)
                print_lines(question_lines(question))
                return await self._answer(terminal, question)

    async def _answer(self, terminal: int, question: ApprovalQuestion) -> Decision:
        labels = {key: decision_text(each, question) for key, each in KEYS.items() if each in question.decisions}
        line = "  ".join(f"[{key}] {label}" for key, label in labels.items())
        while True:
            await asyncio.sleep(ARMED_S)
            _drop_typed(terminal)
            click.echo(f"{whole_words(line, sys.stderr)}: ", nl=False, err=True)
            typed = (await _line(terminal)).strip().lower()
            decision = KEYS.get(typed, _WORDS.get(typed))
            if decision is not None and decision in question.decisions:
                return decision
            _echo("Type one of the letters, then Enter.")


async def fill_at_terminal(form: Form, before: Callable[[], None]) -> dict[str, FormValue] | None:
    """Return what the person types into a form, a line for each field; None where there is no terminal, or for a dot
    alone."""
    before()
    values: dict[str, FormValue] = {}
    with _opened_terminal() as terminal:
        if terminal is None:
            return None
        _echo(f"{printable_line(form.server)} asks:", bold=True)
        for line in form.message.split("\n"):
            _echo(line)
        _echo("Enter alone takes the value in brackets; a dot alone fills nothing in.")
        for field in form.fields:
            while True:
                await asyncio.sleep(ARMED_S)
                _drop_typed(terminal)
                given = f" [{field.default}]" if field.default else ""
                about = f"{field.description} " if field.description else ""
                _echo(f"{field.title}: {about}({field.hint}){given}")
                typed = (await _line(terminal, at_end=".")).strip()
                if typed == ".":
                    return None
                try:
                    value = field.value_of(typed or field.default)
                except UserError as error:
                    _echo(str(error))
                    continue
                if value is not None:
                    values[field.name] = value
                break
    return values


def allowing_option(question: ApprovalQuestion) -> str:
    """Return the option of a command line that allows such a call."""
    import shlex

    if question.preview.kind in ("form", "sampling"):
        return "An answer at a terminal"
    if (command := question.preview.command) is not None:
        if not all(each.isprintable() for each in command.argv):
            return "An answer at a terminal"  # what cannot be shown cannot be copied
        return f"--allow-command {shlex.quote(shlex.join(command.argv))}"
    return f"--allow {printable_line(question.tool.server)}/{printable_line(question.tool.name)}"


def print_lines(lines: tuple[StyledLine, ...]) -> None:
    """Print lines on stderr, in colours where it takes them."""
    for line in lines:
        color, is_heading = _COLORS.get(line.kind), line.kind == "heading"
        if is_heading or line.kind == "prose":
            _echo(line.text, bold=is_heading)
        else:  # may be copied
            click.echo(styled(line.text, fg=color), err=True)


def _echo(text: str, *, bold: bool = False) -> None:
    """Print words for a person, whole ones."""
    click.echo(styled(whole_words(text, sys.stderr), bold=bold or None), err=True)


@contextmanager
def _opened_terminal() -> Iterator[int | None]:
    """Yield a descriptor of the terminal that shows what is typed; None without one."""
    with ExitStack() as opened:
        descriptor = None
        if sys.stdin is not None and sys.stdin.isatty():
            descriptor = sys.stdin.fileno()
        else:
            with suppress(OSError):
                descriptor = os.open(_TERMINAL, os.O_RDWR)
                opened.callback(os.close, descriptor)
        if descriptor is not None:
            opened.enter_context(_fresh(descriptor))
        yield descriptor


@contextmanager
def _fresh(descriptor: int) -> Iterator[None]:
    """Show what is typed at a terminal, by whole lines."""
    if sys.platform == "win32":
        yield
        return
    import termios

    usual = termios.tcgetattr(descriptor)
    shown = [*usual]
    shown[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(descriptor, termios.TCSAFLUSH, shown)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may have closed
            termios.tcsetattr(descriptor, termios.TCSANOW, usual)


def _drop_typed(descriptor: int) -> None:
    """Forget what was typed so far: it was no answer to what is asked now."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
        return
    import termios

    with suppress(termios.error):  # the terminal closed: reading it says so
        termios.tcflush(descriptor, termios.TCIFLUSH)


async def _line(descriptor: int, at_end: str = "n") -> str:
    """Return the next line; `at_end` at the end of the input. Cancelling it leaves the input to others."""
    if sys.platform == "win32":
        return await _windows_line()
    loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
    data = b""
    try:
        loop.add_reader(descriptor, is_ready.set)
        is_watched = True
    except OSError:  # the kqueue of macOS takes no /dev/tty; select does
        is_watched = False
    try:
        while not data.endswith(b"\n"):
            if is_watched:
                await is_ready.wait()
                is_ready.clear()
            while not is_watched and not select.select([descriptor], [], [], 0)[0]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(_POLL_S)
            try:
                piece = os.read(descriptor, 4096)
            except OSError:  # the terminal closed
                piece = b""
            if not piece:
                return at_end
            data += piece
    finally:
        if is_watched:
            loop.remove_reader(descriptor)
    return data.decode("utf-8", "replace")


async def _windows_line() -> str:
    if sys.platform != "win32":
        raise AssertionError("only where a console cannot be waited for")
    import msvcrt

    typed = ""
    while True:
        if not msvcrt.kbhit():
            await asyncio.sleep(_POLL_S)
            continue
        character = msvcrt.getwche()
        if character in "\r\n":
            click.echo(err=True)
            return typed
        typed = typed[:-1] if character == "\b" else typed + character
