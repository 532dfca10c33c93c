"""Crash reports: they describe the error and reveal no chat text."""

from __future__ import annotations

import os
import re
import stat
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from app.chat.store.chat_store import ChatStore
from tests.tui.crashing_app import FAULTS, REFUSAL
from tests.tui.hostile import controls_in, letters, sequences
from tests.tui.pseudo_terminal import PseudoTerminal
from tui.run import report_crash, report_of, write_report

SECRET = "Zebulonia stole the harpsichord"
NOW = datetime(2026, 11, 22, 12, 0, 0)


def failure() -> Exception:
    """An error that has led to another, both with the secret in their text and in their variables."""
    with pytest.raises(ExceptionGroup) as raised:
        wrap(SECRET)
    return raised.value


def wrap(text: str) -> None:
    try:
        int(f"\x1b[2J{text}")
    except ValueError as error:
        raise ExceptionGroup(f"\x1b[2J{text}", [KeyError(text)]) from error


def test_a_report_contains_types_and_positions_but_no_text():
    report = report_of([failure()])
    assert SECRET not in report
    assert "\x1b" not in report
    assert report.index("ValueError in") < report.index("KeyError\n") < report.index("ExceptionGroup in")
    assert 'test_run.py", line' in report
    assert 'int(f"' in report  # the code, which is ours
    assert "Textual" in report


def test_an_error_of_the_system_is_named_by_its_number_and_not_by_the_file():
    try:
        Path(SECRET).read_text()
    except OSError as error:
        report = report_of([error])
    assert "FileNotFoundError (No such file or directory) in pathlib.py" in report
    assert SECRET not in report


def test_a_crash_message_has_a_few_lines_and_the_report_is_readable_by_its_owner_only(tmp_path, capsys):
    assert report_crash(failure(), tmp_path / "cache", is_saved=True) == 1
    text = capsys.readouterr().err.splitlines()
    (report,) = (tmp_path / "cache").iterdir()
    assert len(text) == 4
    assert text[0].startswith("localllm has crashed: ExceptionGroup in test_run.py, line ")
    assert text[1] == "All messages are saved."
    assert text[2].endswith(str(report))
    assert report.read_text() == report_of([failure()])
    assert stat.S_IMODE(report.stat().st_mode) == 0o600


def test_a_possible_loss_is_reported(tmp_path, capsys):
    report_crash(failure(), tmp_path, is_saved=False)
    assert "the last seconds may be lost" in capsys.readouterr().err


def test_a_folder_that_takes_no_report_leaves_it_on_the_terminal(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    report_crash(failure(), tmp_path / "file", is_saved=True)
    text = capsys.readouterr().err
    assert "It follows" in text
    assert 'int(f"' in text
    assert SECRET not in text


def test_no_more_than_ten_reports_are_kept_and_the_newest_of_them(tmp_path):
    paths = [write_report("x", tmp_path, NOW + timedelta(seconds=n)) for n in range(12)]
    assert sorted(tmp_path.iterdir()) == paths[2:]


LEFT_SCREEN, F1 = "\x1b[?1049l", "\x1bOP"
FATAL = sorted(set(FAULTS) - {"refusal", "unseen"})


@pytest.fixture
def environment(tmp_path):
    """A disk of its own, and an engine that says what it hears."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    folders = {name: str(tmp_path / name.lower()) for name in ("DATA_DIR", "CACHE_DIR", "CONFIG")}
    settings = {**folders, "ENGINE": "fake", "PORT": "0"}
    return {**kept, **{f"LOCALLLM_{name}": value for name, value in settings.items()}}


def after_a_fault(place, environment, tmp_path, *, leaves=False):
    """Tell the app a secret, let it fail; return its exit status, what it wrote after that, and the reports."""
    (tmp_path / "data_dir").mkdir()
    (tmp_path / "data_dir" / "welcome-seen").touch()
    program = [sys.executable, str(Path(__file__).parent / "crashing_app.py"), place]
    with PseudoTerminal.app(environment, tmp_path, program=program) as terminal:
        terminal.sees("● ready")
        terminal.types(f"{SECRET}\r")
        terminal.sees("a second")
        terminal.types(F1)
        if leaves:
            terminal.sees("It has failed")
            terminal.types("\x11")
        if place == "keys":
            terminal.until(lambda: terminal.process.poll() is not None or terminal.types(" "), "the app stays")
        terminal.until(lambda: terminal.process.poll() is not None, "the app stays")
        terminal.vanish()
    after = terminal.written[terminal.written.rindex(LEFT_SCREEN) :]
    reports = [path.read_text() for path in (tmp_path / "cache_dir").glob("crash-*.txt")]
    return terminal.process.returncode, after, reports


def is_secret(text):
    return not any(word in text for word in SECRET.split() if word != "the") and "1337" not in str(sequences(text))


@pytest.mark.parametrize("place", FATAL)
@pytest.mark.slow
def test_whichever_part_of_the_app_fails_no_message_is_revealed(place, environment, tmp_path):
    status, after, reports = after_a_fault(place, environment, tmp_path)
    assert status == 1
    assert re.search(r"localllm has crashed: LookupError in \S+\.py, line \d+ ", after)
    assert "All messages are saved." in after
    assert controls_in(after.replace("\r\n", "\n")) == set()
    assert is_secret(after)
    (report,) = reports
    assert report.index("DecodingError") < report.index("LookupError")
    assert "in _fail" in report
    assert is_secret(report)
    assert str(tmp_path / "cache_dir" / "crash-") in letters(after).replace("\r\n", "")
    with ChatStore(tmp_path / "data_dir") as store:
        assert store.messages.recent_prompts(1) == [SECRET]


@pytest.mark.slow
def test_an_uncaught_user_error_is_reported_like_any_other(environment, tmp_path):
    status, after, reports = after_a_fault("refusal", environment, tmp_path)
    assert status == REFUSAL.exit_status
    assert f"Error: {REFUSAL}" in after
    assert "crashed" not in after
    assert reports == []


@pytest.mark.slow
def test_a_failed_background_task_is_reported_at_the_end(environment, tmp_path):
    status, after, reports = after_a_fault("unseen", environment, tmp_path, leaves=True)
    assert status == 0
    assert "A background task of localllm failed: LookupError" in after
    assert is_secret(after)
    assert len(reports) == 1
    assert is_secret(reports[0])
