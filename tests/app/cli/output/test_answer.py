from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from app.chat.conversation import Message
from app.chat.events import Repeating, Written
from app.chat.state import ApprovalQueue
from app.cli.output.answer import AnswerPrinter, BusyLine, LoadingLine, as_json, source_lines, stats_line
from app.protocol.chat import Source
from tests.app.client.scripted_client import COMPLETED, LOADING, READY

MESSAGE = Message(id=1, parent_id=None, role="assistant", content="")


def test_nothing_a_model_writes_is_obeyed_by_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]52;c;evil\x07b\u202e\x9b31mc\n"
    AnswerPrinter().write(Written(MESSAGE, hostile, hostile))
    told = capsys.readouterr()
    assert told.out == "a]52;c;evilb31mc\n"
    assert told.err == "a]52;c;evilb31mc\n\n\n"


def test_thoughts_go_to_stderr_with_a_blank_line_after_them(capsys: pytest.CaptureFixture[str]) -> None:
    printer = AnswerPrinter()
    for text, reasoning in (("", "Hm,"), ("Y", " so."), ("es.", "")):
        printer.write(Written(MESSAGE, text, reasoning))
    assert capsys.readouterr() == ("Yes.", "Hm, so.\n\n")


def test_the_stats_are_one_line_with_units() -> None:
    figures = "first token 0.25 s · prefill 160.0 tok/s · decode 48.0 tok/s · 40 tokens in (0 cached), 12 out"
    assert stats_line(COMPLETED) == f"{figures} · stop"


def test_the_stats_include_what_drafts_saved() -> None:
    drafted = replace(COMPLETED, n_drafted_tokens=9, n_accepted_tokens=6, tokens_per_pass=2.0, saved_s=0.5)
    assert "12 out · drafts 6 of 9 accepted, 2.00 tokens per pass, about 0.50 s saved · stop" in stats_line(drafted)
    assert as_json("guide", "text", drafted)["usage"]["accepted_tokens"] == 6


def test_the_sources_of_an_answer_are_numbered_and_safe_to_print() -> None:
    sources = (Source("/papers/soup.pdf", "text", page=3), Source("/papers/\x1b[31ma\nb.md", "text", heading="Broth"))
    assert source_lines(sources) == "Sources:\n[1] /papers/soup.pdf, page 3\n[2] /papers/[31ma b.md (Broth)"


def test_the_json_has_the_promised_keys() -> None:
    assert set(as_json("guide", "text", COMPLETED)) == {
        "text",
        "reasoning",
        "finish_reason",
        "usage",
        "timings",
        "model",
    }


def test_a_notice_is_printed_once_and_loading_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = LoadingLine()
    line.show(LOADING)
    for _ in range(2):
        line.show(replace(READY, notices=("Slower kernels.\x1b[0m",)))
    assert capsys.readouterr().err == "Slower kernels.[0m\n"


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_that_an_answer_repeats_itself_is_for_the_person_at_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    printer, approvals = AnswerPrinter(), ApprovalQueue(lambda: None)
    for event in (Written(MESSAGE, "again and"), Repeating(MESSAGE), Written(MESSAGE, " again")):
        await printer.draw(event, approvals)
    told = capsys.readouterr()
    assert told.out == "again and again"
    assert told.err == ("\nThe answer repeats itself: Ctrl-C stops it.\n" if is_terminal else "")


@pytest.mark.parametrize(("is_overwritten", "term"), [(False, "xterm"), (True, "dumb")])
def test_progress_for_a_reader_of_lines_is_a_whole_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_overwritten: bool, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    now_s = iter([0.0, 0.0, 4.0, 9.9, 10.0, 10.0, 12.0])
    line = BusyLine(is_overwritten=is_overwritten, clock=lambda: next(now_s))
    for text in ("reading 1 of 9", "reading 3 of 9", "reading 6 of 9", "reading 8 of 9"):
        line.put(text)
    line.clear()
    assert capsys.readouterr().err == "reading 1 of 9\nreading 8 of 9\n"


@pytest.mark.parametrize(
    ("is_terminal", "shown"), [(True, "to quit: Ctrl-D or\n/exit\n"), (False, "to quit: Ctrl-D or /exit\n")]
)
def test_a_line_is_broken_between_words_at_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    AnswerPrinter().print_line("to quit: Ctrl-D or /exit")
    assert capsys.readouterr().err == shown


def test_line_that_is_overwritten_has_its_row_to_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cells are left for what the terminal writes for Ctrl-C."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = BusyLine()
    line.put("reading 2,100 of 6,000 tokens")
    line.clear()
    shown = capsys.readouterr().err
    assert shown.endswith(f"\r{' ' * 19}\r")
    assert max(map(len, shown.split("\r"))) < 20
