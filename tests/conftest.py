"""What holds for every test."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

# Started in the background of a script, tests would hand an ignored Ctrl-C on to every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where no bytecode may be written beside the sources, each of hundreds of processes would compile all its imports.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# No test is timed: Hypothesis would fail one whose example took 200 ms because the machine had other things to do.
# Examples are others in each run: a third of Hypothesis's 100 do. `--hypothesis-profile thorough` looks for long.
settings.register_profile("untimed", deadline=None, max_examples=33)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("untimed")

# A garbage collection after each 700 new objects, the default, took a twelfth of what tests of the TUI cost.
gc.set_threshold(20_000, 20, 100)


_numbers = count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder of the test's own, as pytest's fixture does, which lists those of all tests before it."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_numbers):04}", numbered=False)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return four workers more than there are processors, six at most: many tests wait, for a process or for a frame.

    Four kept two processors busy to 86 %; to collect the tests takes each worker seven seconds of one.
    """
    return min((os.cpu_count() or 1) + 4, 6)


_MARKS = ("slow", "real", "gpu")
_HAS_MARK = re.compile(rb"\bmark\.(%s)\b" % b"|".join(mark.encode() for mark in _MARKS))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a marked test where `-m` selects none else, as `-m slow` does.

    To import all took each worker seven seconds. All of tests/real is marked by its own conftest.
    """
    asked: set[str] = set()
    if not config.option.markexpr or collection_path.suffix != ".py" or "real" in collection_path.parts:
        return None
    are_others_wanted = Expression.compile(config.option.markexpr).evaluate(lambda name, **_: bool(asked.add(name)))
    if are_others_wanted or not asked <= {*_MARKS} or _HAS_MARK.search(collection_path.read_bytes()):
        return None
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported and collected to no later garbage collection: a full one took a second and more."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start children as the product does, with command lines of their own, where other tests have them forked."""
    popen = next(each for each in subprocess.Popen.__mro__ if each.__module__ == "subprocess")
    monkeypatch.setattr("subprocess.Popen", popen)
