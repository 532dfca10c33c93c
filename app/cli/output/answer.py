"""The answer of a model on the command line: the events of its chat printed as they come, and summed up."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from app.chat.activity import loading_activity, spinner
from app.chat.backend import ConnectionState
from app.chat.branches import Ending, TranscriptEntry, empty_answer_text
from app.chat.conversation import Attachment, Message
from app.chat.events import ApprovalNeeded, ChatEvent, FormNeeded, Note, Repeating, Result, Written
from app.chat.state import ApprovalQueue, format_reasoning
from app.cli.approval import TerminalApprover, fill_at_terminal
from app.cli.output.format import styled
from app.cli.output.word_wrap import WordWrap, whole_words
from app.common.terminal import printable, printable_line
from app.protocol.chat import Completed, Source
from app.protocol.status import ModelStatus
from app.tools.display import result_text

_ENDINGS = {
    Ending.STOPPED: "stopped",
    Ending.ELSEWHERE: "answering in another window",
    Ending.CUT: "token limit reached: /continue resumes",
}
_REPEATING = "The answer repeats itself: Ctrl-C stops it."
_LINE_EVERY_S = 10.0
_ECHO = 2  # cells that the terminal writes for Ctrl-C, after the line


class BusyLine:
    """What is going on, on stderr where that is a terminal: a line of at most one row that is overwritten and erased.
    For a reader of lines, as a screen reader or a terminal that cannot go back (TERM=dumb) is, nothing is overwritten:
    a whole line comes every ten seconds. `clock` counts seconds."""

    def __init__(self, *, is_overwritten: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_overwritten = is_overwritten and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._n_cells = 0
        self._next_s = 0.0

    def put(self, text: str) -> None:
        if not self._is_terminal:
            return
        if not self._is_overwritten:
            if self._clock() >= self._next_s:
                self._next_s = self._clock() + _LINE_EVERY_S
                click.echo(printable_line(text), err=True)
            return
        n_most = _row() - _ECHO
        line = printable_line(text)
        line = set_cell_size(line, n_most) if cell_len(line) > n_most else line
        n_cells = cell_len(line)
        click.echo(f"\r{line}{' ' * (min(self._n_cells, n_most) - n_cells)}", nl=False, err=True)
        self._n_cells = n_cells

    def clear(self) -> None:
        if self._n_cells:
            click.echo(f"\r{' ' * min(self._n_cells + _ECHO, _row())}\r", nl=False, err=True)
            self._n_cells = 0


def _row() -> int:
    """Return the cells of a row that can be written without a line wrap."""
    return shutil.get_terminal_size().columns - 1


dimmed = partial(styled, dim=True)


class AnswerPrinter:
    """Prints the events of a chat, without control characters: answers on stdout, the rest on stderr. Reasoning is
    dimmed or, if it `collapses_reasoning`, one line. It asks at the terminal whether a call may run. `has_begun` is
    true once the present answer has text, and again false after a call of a tool. While it `is_asking` nothing else
    should be printed. An answer that `is_silent` is not printed."""

    def __init__(self, busy: BusyLine | None = None) -> None:
        self.is_asking = self.is_silent = self.collapses_reasoning = False
        self.busy = busy or BusyLine()
        self._approver = TerminalApprover(self.interrupt)
        self.begin()

    def begin(self) -> None:
        self.has_begun = self._is_thinking = self._must_end_line = self._has_collapsed = False
        self._wrap = WordWrap()

    async def draw(self, event: ChatEvent, approvals: ApprovalQueue) -> None:
        """Print what happened; a question about a call is put to `approvals` once it is answered."""
        match event:
            case Written():
                self.write(event)
            case Result(message) if message.result is not None:
                self.interrupt()
                self.has_begun = False
                labels = [f"[{printable_line(each.label)}]" for each in message.attachments]
                words = " ".join((result_text(message.result, is_running=False), *labels))
                click.echo(dimmed(words), err=True)
            case ApprovalNeeded(question):
                self.is_asking = True
                try:
                    approvals.answer(question, await self._approver.ask(question))
                finally:
                    self.is_asking = False
            case FormNeeded(form):
                self.is_asking = True
                try:
                    approvals.filled(form, await fill_at_terminal(form, self.interrupt))
                finally:
                    self.is_asking = False
            case Note(text):
                self._print_between(text)
            case Repeating() if sys.stderr is not None and sys.stderr.isatty():
                self._print_between(_REPEATING)

    def _print_between(self, text: str) -> None:
        """Print a line of its own; an answer may follow."""
        self.busy.clear()
        self._print_held()
        if self._must_end_line:
            click.echo(err=True)
        self.print_line(text)
        self.begin()

    def write(self, written: Written) -> None:
        """Print more of an answer; a summary like reasoning."""
        text, reasoning = written.text, written.reasoning
        if written.message.role == "summary":
            text, reasoning = "", text
        elif self.collapses_reasoning:
            self._has_collapsed = self._has_collapsed or bool(reasoning)
            reasoning = ""
            if self._has_collapsed and text:
                self._has_collapsed = False
                self.busy.clear()
                click.echo(dimmed(f"▸ {format_reasoning(written.message, is_running=False)}"), err=True)
        if self.is_silent or not (text or reasoning):
            return
        self.busy.clear()
        self.has_begun = True
        if reasoning:
            self._is_thinking = True
            self._print(reasoning)
        if text:
            if self._is_thinking:
                self._print_held()
                self._is_thinking = False
                click.echo("\n", err=True)
                self._wrap = WordWrap()
            self._print(text)
        self._must_end_line = not (text or reasoning).endswith("\n")

    def _print(self, text: str) -> None:
        """Print more of the reasoning or of the answer; a terminal gets whole words at the end of its rows."""
        shown = printable(text)
        stream = sys.stderr if self._is_thinking else sys.stdout
        if stream is not None and stream.isatty():
            shown = self._wrap.feed(shown, shutil.get_terminal_size().columns)
        if shown:
            click.echo(dimmed(shown) if self._is_thinking else shown, nl=False, err=self._is_thinking)

    def _print_held(self) -> None:
        if held := self._wrap.flush():
            click.echo(dimmed(held) if self._is_thinking else held, nl=False, err=self._is_thinking)

    def interrupt(self) -> None:
        """End the line of the answer, for something else."""
        self.busy.clear()
        self._print_held()
        if self._must_end_line:
            click.echo()
            self._must_end_line = False

    def end(self, note: str = "") -> None:
        """Print how the answer ended, and end its line."""
        self.busy.clear()
        self._print_held()
        if note:
            click.echo(f"{' ' if self._must_end_line else ''}[{note}]", nl=False, err=True)
        if note or self._must_end_line:
            click.echo()
        self._must_end_line = False

    def print_line(self, text: str) -> None:
        """Print text that is not part of an answer."""
        self.busy.clear()
        click.echo(whole_words(printable(text), sys.stderr), err=True)


def ending_note(entry: TranscriptEntry) -> str:
    """Return how an answer ended, or what is there in place of its text; empty where it ended as usual."""
    return empty_answer_text(entry) or _ENDINGS.get(entry.ending, "")


def source_lines(sources: Sequence[Source]) -> str:
    """Return the passages that an answer was given, a line each, as it cites them."""
    places = (f"[{number}] {printable_line(source.place)}" for number, source in enumerate(sources, start=1))
    return "\n".join(("Sources:", *places))


def stats_line(completed: Completed) -> str:
    """Return one line: time to first token, rates, tokens, and the time that drafts saved, if any."""
    drafts = (
        f" · drafts {completed.n_accepted_tokens} of {completed.n_drafted_tokens} accepted,"
        f" {completed.tokens_per_pass:.2f} tokens per pass, about {completed.saved_s:.2f} s saved"
    )
    return (
        f"first token {completed.time_to_first_token_s:.2f} s"
        f" · prefill {completed.prefill_tokens_per_s:.1f} tok/s"
        f" · decode {completed.decode_tokens_per_s:.1f} tok/s"
        f" · {completed.n_prompt_tokens} tokens in ({completed.n_cached_tokens} cached),"
        f" {completed.n_output_tokens} out{drafts if completed.n_accepted_tokens else ''} · {completed.finish_reason}"
    )


def as_json(
    model_id: str, text: str, completed: Completed, reasoning: str = "", attachments: Sequence[Attachment] = ()
) -> dict[str, Any]:
    """Return the answer as one JSON object, with what was attached to its question, if anything was."""
    return {
        "text": text,
        "reasoning": reasoning,
        "finish_reason": completed.finish_reason,
        "usage": {
            "prompt_tokens": completed.n_prompt_tokens,
            "cached_tokens": completed.n_cached_tokens,
            "completion_tokens": completed.n_output_tokens,
            "drafted_tokens": completed.n_drafted_tokens,
            "accepted_tokens": completed.n_accepted_tokens,
        },
        "timings": {
            "time_to_first_token_ms": completed.time_to_first_token_s * 1000,
            "prompt_per_second": completed.prefill_tokens_per_s,
            "predicted_per_second": completed.decode_tokens_per_s,
            "tokens_per_pass": completed.tokens_per_pass,
            "draft_saved_ms": completed.saved_s * 1000,
        },
        "model": model_id,
        **({"attachments": [_attachment_json(attachment) for attachment in attachments]} if attachments else {}),
    }


def calls_json(branch: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield the calls of tools in a branch of a chat, each with how it ended and what it returned."""
    calls = {call.call_id: call for message in branch for call in message.calls}
    for message in branch:
        result = message.result
        if result is None:
            continue
        call = calls.get(result.call_id)
        yield {
            "name": call.name if call else result.tool,
            "arguments": call.arguments if call else "",
            "title": result.title,
            "outcome": result.outcome.value,
            "detail": result.detail,
            "duration_s": result.duration_s,
            "changed_files": [change.path for change in result.changes],
            "result": message.content,
            **({"attachments": list(map(_attachment_json, message.attachments))} if message.attachments else {}),
        }


def _attachment_json(attachment: Attachment) -> dict[str, Any]:
    media = [{"mime_type": file.mime_type, "bytes": file.n_bytes, "sha256": file.sha256} for file in attachment.media]
    return {
        "name": attachment.name,
        "media_type": attachment.media_type,
        "detail": attachment.detail,
        "characters": len(attachment.content),
        "media": media,
    }


class LoadingLine:
    """Shows the loading progress of a model where stderr is a terminal; prints each notice once."""

    def __init__(self) -> None:
        self._line = BusyLine()
        self._printed: set[str] = set()

    def show(self, status: ModelStatus) -> None:
        if status.state == "loading":
            loading = loading_activity(ConnectionState.of_model(status))
            self._line.put(f"{status.id}: {loading.line(spinner(time.monotonic()))}")
        else:
            self._line.clear()
            self.print(status.notices)

    def print(self, notices: Sequence[str]) -> None:
        """Print the notices that were not printed yet."""
        for notice in notices:
            if notice not in self._printed:
                self._printed.add(notice)
                click.echo(printable(notice), err=True)
