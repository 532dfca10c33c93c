"""The real app, used while its processes are killed, with checks after each kill.

Owns what counts as recovered and as lost. Used by a test and, a hundred times, by tests/battery/kills/kill_app.py.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.chat.store.chat_store import FILE_NAME
from tests.patience import PATIENCE_S
from tests.tui.app_at_terminal import AppAtTerminal, Glance, letters_of
from tests.tui.user_actions import LONG_PRESET, USER_ACTIONS

__all__ = ["MAX_LOST_S", "KilledApp", "Trial"]

MAX_LOST_S = 1.0
_KEYS_ARRIVE_S = 5.0
_GONE_WITHIN_S = 20.0  # a worker keeps what it computed first
_GONE_WITHIN_RETURNS = 4  # on a busy machine: as long as the app takes to be there again, and to answer
_WORKING = ("reading", "answering")

# Messages about a killed process; one of them must be on the screen.
_NOTICES = {
    "worker": ("The engine process died",),
    "service": ("Lost the service", "Connected again", "The service ended", "No localllm service answers"),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one kill. `key` is the key the user had to press, "" for none; `ready_s` is how long it was
    until a new question was answered; `lost_s` is how long the oldest text that is lost had been on the screen."""

    victim: str
    doing: str
    key: str
    ready_s: float
    n_lost: int
    lost_s: float
    faults: tuple[str, ...]


class KilledApp:
    """The app with its own folder, a simulated user driven by `chance`, and the numbers of the sent questions."""

    def __init__(self, folder: Path, port: int, chance: random.Random) -> None:
        self.app = AppAtTerminal(folder, LOCALLLM_PORT=str(port))
        (self.app.data_dir / "presets.toml").write_text(LONG_PRESET, encoding="utf-8")
        self._chance = chance
        self._sent: set[int] = set()
        self._dying: list[tuple[float, psutil.Process]] = []
        self._longest_return_s = 0.0

    def start(self) -> None:
        """Start the app, and wait for the model."""
        self.app.start()
        self.app.until(lambda glance: glance.status == "ready", "the model")

    def kill(self, victim: str, doing: str = "") -> Trial:
        """Perform a user action, kill `victim` ("worker", "service", "app") meanwhile, and check the recovery."""
        app, chance = self.app, self._chance
        doing = doing or chance.choice(tuple(USER_ACTIONS))
        USER_ACTIONS[doing](app, chance)
        app.watches(chance.uniform(0.0, 0.8))
        before, unfinished = app.look(), self._unfinished_jobs()
        process = app.part(victim)
        self._dying += [(time.perf_counter(), each) for each in (process, *process.children(recursive=True))]
        process.kill()
        killed_s = time.perf_counter()
        seen, app.glances = app.glances, []
        if victim == "app":
            app.restart()
        key = self._comes_back(victim, process)
        faults = [*self._unreported(victim, before, doing), *self._unanswered()]
        ready_s = time.perf_counter() - killed_s
        self._longest_return_s = max(self._longest_return_s, ready_s)
        self._note_sent([*seen, *app.glances])
        kept = _stored(app.data_dir)
        lost = self._sent - kept.asked
        # PATH.gg of a growing PATH.gguf is a link for a moment, drawn with an address that the model did not write
        shown = [glance for glance in seen if "http" not in glance.answers]
        unkept = [(killed_s - glance.at_s, glance.answers) for glance in shown if glance.answers not in kept.answers]
        lost_s, lost_text = max(unkept, default=(0.0, ""))
        faults += [f"n{number} is lost" for number in sorted(lost)]
        faults += [f"text that was {lost_s:.2f} s old is lost: {lost_text}"] * (lost_s > MAX_LOST_S)
        faults += [f"integrity_check: {kept.integrity}"] * (kept.integrity != "ok")
        faults += self._wrong_jobs(unfinished) if victim != "worker" else []
        faults += self._outlived()
        return Trial(victim, f"{doing}, {before.status or 'elsewhere'}", key, ready_s, len(lost), lost_s, tuple(faults))

    def finish(self) -> list[str]:
        """Have interrupted jobs done after all, find questions in their chats, and leave; return what is wrong."""
        app = self.app
        faults = self._retried_jobs()
        app.leave()
        app.start()
        kept = _stored(app.data_dir)
        faults += [f"n{number} is lost" for number in sorted(self._sent - kept.asked)]
        number = self._chance.choice(sorted(kept.shown & self._sent))
        if not self._is_found(number):
            faults.append(f"n{number} is not found:\n{app.look().screen}")
        app.leave()
        psutil.wait_procs(app.processes(), timeout=PATIENCE_S)
        return faults + [f"{process} is still there" for process in app.processes()]

    def _is_found(self, number: int) -> bool:
        """Whether a search in the list of chats leads to the question."""
        app = self.app
        app.presses("f5")
        app.until(lambda glance: bool(re.search(r"\d chats?$", glance.screen, re.MULTILINE)), "the chats")
        app.presses("/", f"n{number}", "enter")
        app.watches(1.0)
        app.presses("enter")
        return app.comes_to(lambda glance: number in glance.asked, PATIENCE_S)

    # What must be, after a kill

    def _comes_back(self, victim: str, killed: psutil.Process) -> str:
        """Wait until the app is ready; return the key that it wanted for that."""
        app, pressed = self.app, ""
        app.goes_home()
        deadline_s = time.perf_counter() + PATIENCE_S
        while True:
            glance = app.look()
            if glance.status == "ready" and (victim == "app" or app.has(victim, other_than=killed)):
                return pressed
            if glance.status == "not available" and "Ctrl+R retries" in glance.screen and not pressed:
                pressed = "Ctrl+R"
                app.presses("ctrl+r")
            if time.perf_counter() > deadline_s:
                raise SystemExit(f"the {victim} never came back:\n{glance.screen}")
            time.sleep(0.01)

    def _unreported(self, victim: str, before: Glance, doing: str) -> list[str]:
        """Return a fault if the kill was not reported; for a worker, only if it was working and was not stopped."""
        is_reported = any(
            words in glance.screen for words in _NOTICES.get(victim, ("",)) for glance in self.app.glances
        )
        is_noticed = victim == "service" or (before.status in _WORKING and doing != "stops")
        if is_reported or not is_noticed or (victim == "worker" and _stored(self.app.data_dir).is_answered):
            return []
        return [f"the kill of the {victim} was not reported:\n{self.app.look().screen}"]

    def _unanswered(self) -> list[str]:
        """Ask something; return what is wrong where that is not answered."""
        app = self.app
        for _ in range(2):  # a place that was being opened may take the keys of the first time
            app.goes_home()
            app.presses("ctrl+n")
            number = app.asks("What can you do?")
            if app.comes_to(lambda glance, number=number: number in glance.asked, _KEYS_ARRIVE_S):
                break
        answered = app.comes_to(
            lambda glance: number in glance.asked and glance.status == "ready" and bool(glance.answers), PATIENCE_S
        )
        self._note_sent(app.glances)
        return [] if answered else [f"n{number} is not answered:\n{app.look().screen}"]

    def _outlived(self) -> list[str]:
        """Which processes are there long after the one that they worked for."""
        now_s = time.perf_counter()
        within_s = max(_GONE_WITHIN_S, _GONE_WITHIN_RETURNS * self._longest_return_s)
        late = [process for at_s, process in self._dying if now_s - at_s > within_s and process.is_running()]
        self._dying = [(at_s, process) for at_s, process in self._dying if now_s - at_s <= within_s]
        return [f"{process} outlived its owner" for process in late]

    def _note_sent(self, glances: Sequence[Glance]) -> None:
        self._sent.update(number for glance in glances for number in glance.asked)

    # Jobs

    def _job_states(self) -> dict[str, str]:
        """How each job stands on the disk, newest first."""
        jobs = [json.loads(path.read_text(encoding="utf-8")) for path in (self.app.data_dir / "jobs").glob("*.json")]
        return {job["id"]: job["state"] for job in sorted(jobs, key=lambda job: -job["created_s"])}

    def _unfinished_jobs(self) -> set[str]:
        return {job_id for job_id, state in self._job_states().items() if state in ("queued", "running")}

    def _wrong_jobs(self, unfinished: set[str]) -> list[str]:
        """Return what is wrong with the list of jobs, given those that had not ended when their service did."""
        n_jobs = len(self._job_states())
        if not n_jobs:
            return []
        self.app.presses("f8")
        if not self.app.comes_to(lambda glance: glance.n_jobs == n_jobs, PATIENCE_S):
            return [f"{n_jobs} jobs are kept, and these listed:\n{self.app.look().screen}"]
        left = unfinished & self._unfinished_jobs()
        return [f"the job {job_id} is said to run" for job_id in sorted(left)]

    def _retried_jobs(self) -> list[str]:
        """Retry what was interrupted; return what does not get done."""
        app, states = self.app, self._job_states()
        interrupted = [job_id for job_id, state in states.items() if state == "interrupted"]
        if not interrupted:
            return []
        app.goes_home()
        app.presses("f8")
        app.comes_to(lambda glance: glance.n_jobs == len(states), PATIENCE_S)
        for state in states.values():
            app.presses(*["r"] * (state == "interrupted"), "down")
            app.watches(0.2)
        app.comes_to(lambda _: all(self._job_states()[job_id] == "done" for job_id in interrupted), PATIENCE_S)
        states = self._job_states()
        return [
            f"the job {job_id} is {states[job_id]} after a retry" for job_id in interrupted if states[job_id] != "done"
        ]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What chats.db holds: the numbers of all questions, and of those that a chat shows; all answers as letters;
    whether the last message is a finished answer; what SQLite says of the file."""

    asked: frozenset[int]
    shown: frozenset[int]
    answers: str
    is_answered: bool
    integrity: str


_SHOWN = """WITH RECURSIVE branch (chat_id, id, parent_id, content) AS (
    SELECT m.chat_id, m.id, m.parent_id, m.content FROM messages m JOIN chats ON chats.leaf_id = m.id
    UNION ALL SELECT m.chat_id, m.id, m.parent_id, m.content FROM messages m JOIN branch ON branch.parent_id = m.id
) SELECT content FROM branch"""


def _stored(data_dir: Path) -> _Kept:
    with closing(sqlite3.connect(data_dir / FILE_NAME, timeout=PATIENCE_S)) as connection:
        connection.execute("INSERT INTO messages_words (messages_words, rank) VALUES ('integrity-check', 1)")
        integrity = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
        rows = connection.execute("SELECT role, state, content FROM messages ORDER BY id").fetchall()
        shown = [content for (content,) in connection.execute(_SHOWN)]
    answers = "|".join(letters_of(content) for role, _, content in rows if role == "assistant")
    is_answered = bool(rows) and rows[-1][:2] == ("assistant", "finished")
    asked = [content for role, _, content in rows if role == "user"]
    return _Kept(_numbers(asked), _numbers(shown), answers, is_answered, integrity)


def _numbers(texts: Sequence[str]) -> frozenset[int]:
    return frozenset(int(number) for text in texts for number in re.findall(r"\bn(\d+)\b", text))
