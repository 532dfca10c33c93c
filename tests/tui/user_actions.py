"""User actions in the app: a table of key sequences that do not wait for results."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.tui.app_at_terminal import AppAtTerminal

__all__ = ["LONG_PRESET", "USER_ACTIONS"]

LONG_PRESET = "[wild]\ntemperature = 8.0\ntop_k = 0\ntop_p = 1.0\nmin_p = 0.0\n"  # long answers, though of no sense
_QUESTIONS = ("What can you do?", "How do I quantize a model?", "Which keys does this app have?", "Who are you?")
_MOST_JOBS = 12


def _ask(app: AppAtTerminal, chance: random.Random) -> None:
    app.goes_home()
    app.asks(chance.choice(_QUESTIONS))


def _ask_for_long(app: AppAtTerminal, chance: random.Random) -> None:
    app.goes_home()
    app.presses("ctrl+n", "/preset wild", "enter")
    app.asks(chance.choice(_QUESTIONS))


def _stop(app: AppAtTerminal, chance: random.Random) -> None:
    _ask_for_long(app, chance)
    app.watches(chance.uniform(0.1, 0.5))
    app.presses("esc")


def _edit(app: AppAtTerminal, chance: random.Random) -> None:
    app.goes_home()
    app.presses("/edit", "enter")
    app.watches(0.2)
    app.asks("or so?")


def _answer_again(app: AppAtTerminal, chance: random.Random) -> None:
    app.goes_home()
    app.presses("ctrl+r")


def _open_another_chat(app: AppAtTerminal, chance: random.Random) -> None:
    app.presses("f5")
    app.watches(0.3)
    app.presses(*["down"] * chance.randrange(5), "enter")


def _go_about(app: AppAtTerminal, chance: random.Random) -> None:
    for number in chance.sample(range(5, 11), 2):
        app.presses(f"f{number}")
        app.watches(chance.uniform(0.1, 0.4))


def _read_log(app: AppAtTerminal, chance: random.Random) -> None:
    app.goes_home()
    app.presses("/log", "enter")
    app.comes_to(lambda glance: "Filter lines" in glance.screen, patience_s=3.0)


def _quantize(app: AppAtTerminal, chance: random.Random) -> None:
    if len(list((app.data_dir / "jobs").glob("*.json"))) >= _MOST_JOBS:
        _go_about(app, chance)
        return
    app.presses("f6")
    app.comes_to(lambda glance: "Local" in glance.screen and "guide" in glance.screen, patience_s=5.0)
    app.presses("home", "q")
    if app.comes_to(lambda glance: "Choose a type or a size" in glance.screen, patience_s=3.0):
        app.presses(*["down"] * chance.randrange(1, 11), "enter")  # the first choice starts nothing


USER_ACTIONS: Mapping[str, Callable[[AppAtTerminal, random.Random], None]] = {
    "asks": _ask,
    "asks for long": _ask_for_long,
    "stops": _stop,
    "edits": _edit,
    "asks again": _answer_again,
    "opens a chat": _open_another_chat,
    "goes about": _go_about,
    "reads the log": _read_log,
    "quantizes": _quantize,
}
