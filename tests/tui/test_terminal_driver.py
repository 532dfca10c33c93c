"""The app quits when its terminal disappears, without spinning, and stops its service."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from tests.tui.pseudo_terminal import PseudoTerminal

LONG_S = 60.0


@pytest.fixture
def environment(tmp_path):
    """A disk of its own, and an engine that says what it hears."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    folders = {name: str(tmp_path / name.lower()) for name in ("DATA_DIR", "CACHE_DIR", "CONFIG")}
    settings = {**folders, "ENGINE": "fake", "PORT": "0"}
    return {**kept, **{f"LOCALLLM_{name}": value for name, value in settings.items()}}


def all_leave(terminal):
    """Close the terminal; return whether the app ended by itself, in good order, and all that it had started."""
    started = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.vanish()
    assert terminal.process.wait(LONG_S) == 0
    return not psutil.wait_procs(started, LONG_S)[1]


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, False], ids=["told by a signal", "not told"])
def test_the_app_leaves_with_its_service_when_the_terminal_vanishes(environment, tmp_path, is_told):
    with PseudoTerminal.app(environment, tmp_path, is_told_of_its_end=is_told) as terminal:
        terminal.sees("Welcome")
        terminal.types("\x1b")
        terminal.sees("· ready")
        assert all_leave(terminal)


def test_the_app_is_drawn_on_the_terminal_wherever_errors_go(environment, tmp_path):
    with (
        (tmp_path / "errors").open("wb") as errors,
        PseudoTerminal.app(environment, tmp_path, stderr=errors.fileno()) as terminal,
    ):
        terminal.sees("Welcome")
        assert (tmp_path / "errors").read_bytes() == b""
