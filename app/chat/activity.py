"""What a chat is at, in words for a person who waits: drawn again and again between its events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.chat.backend import ConnectionState
from app.chat.state import ChatState, RunningAnswer
from app.common.terminal import format_bytes, printable_line, speed_words
from app.protocol.chat import PromptProgress, ThreadUse

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_S = 5.0
BAR_CELLS = 10
FULL, EMPTY = "▰", "▱"
_SILENT_S = 5.0  # without a token before that is worth a word
_FELT_S = 2.0  # a wait that is no moment any more


@dataclass(frozen=True, slots=True)
class Activity:
    """What a chat is at: a word, which part of it is done (None: nobody knows), and facts, the most important first.
    One that `is_moving` goes on by itself; another waits for the person."""

    word: str
    share: float | None = None
    facts: tuple[str, ...] = ()
    is_moving: bool = True
    warning: str = ""

    @property
    def bar(self) -> str:
        return "" if self.share is None else bar_of(self.share)

    def line(self, frame: str = "") -> str:
        """Return all of it in one line."""
        begin = " ".join(filter(None, (frame, self.word, self.bar)))
        facts = " · ".join(filter(None, (*self.facts, self.warning)))
        return f"{begin} {facts}" if self.bar and facts else " · ".join(filter(None, (begin, facts)))

    @property
    def words(self) -> str:
        """All of it without signs, as a screen reader reads it."""
        return " · ".join(filter(None, (self.word, *self.facts, self.warning)))


def spinner(now_s: float) -> str:
    """Return the moving sign at a moment."""
    return SPINNER[int(now_s * FRAMES_PER_S) % len(SPINNER)]


def bar_of(share: float) -> str:
    """Return a bar of which this share is full."""
    n_full = full_cells(share)
    return FULL * n_full + EMPTY * (BAR_CELLS - n_full)


def full_cells(share: float) -> int:
    """Return how many cells of a bar are full: none only for nothing, all only for all of it."""
    n_full = int(min(share, 1.0) * BAR_CELLS)
    return max(n_full, 1) if share > 0 else 0


def activity_of(chat: ChatState, now_s: float) -> Activity | None:
    """Return what the chat, or the model that it waits for, is at; None for nothing."""
    if chat.approvals.questions:
        return Activity("waits for your decision", is_moving=False)
    state = chat.connection.state
    if state.phase in ("starting", "loading") and not chat.model_beside_connection:
        return loading_activity(state)
    if chat.activity == "calling":
        running = chat.conversation.messages.get(chat.conversation.running_id or 0)
        title = printable_line(running.result.title) if running is not None and running.result is not None else ""
        return Activity(f"running {title}" if title else "running a tool")
    if chat.activity == "searching":
        return Activity("searching your documents")
    if not chat.activity and chat.conversation.is_answered_elsewhere:
        return Activity("another window answers", facts=("a question waits until it has ended",))
    if not chat.activity:
        return None
    running_answer = chat.running
    if running_answer is None:  # its messages are put together, or its tools looked up
        return Activity("summarising the chat" if chat.activity == "summarising" else "reading")
    return _answering(chat, running_answer, now_s)


def loading_activity(state: ConnectionState) -> Activity:
    """Return how far the model of a connection is that starts or loads."""
    if state.phase == "starting":
        return Activity("starting the service")
    if not 0 < state.progress < 1:
        return Activity("preparing the model" if state.progress <= 0 else "getting the model ready")
    done = f"{state.progress:.0%}"
    if state.load_bytes:
        done = f"{format_bytes(int(state.progress * state.load_bytes))} of {format_bytes(state.load_bytes)}"
    return Activity("loading", state.progress, tuple(filter(None, (done, _left(state.load_left_s)))))


def _answering(chat: ChatState, running: RunningAnswer, now_s: float) -> Activity:
    is_summary = chat.activity == "summarising"
    progress = running.progress
    silent_s = now_s - running.heard_s
    silence = f"no token for {_duration(silent_s)}" if silent_s >= _SILENT_S else ""
    if running.is_writing:
        rate = chat.figures.tokens_per_s
        word = "summarising" if is_summary else "thinking" if chat.thinking_id else "writing"
        speed = speed_words(rate) if rate and not is_summary else ""
        machine = chat.connection.state.threads or running.machine
        return Activity(word, None, tuple(filter(None, (silence or speed,))), warning=_busy(machine))
    if progress is not None and progress.n_ahead:
        others = "another answer" if progress.n_ahead == 1 else f"{progress.n_ahead} other answers"
        return Activity(f"waits for {others}", None, tuple(_waited(running, now_s)))
    word = "reading the chat for a summary" if is_summary else " ".join(("reading", *_attached(chat)))
    if progress is None or not progress.n_tokens:
        return Activity(word, None, (silence,) if silence else tuple(_waited(running, now_s)))
    left_s = None if progress.left_s is None else max(0.0, progress.left_s - silent_s)
    facts = (f"{progress.n_read:,} of {progress.n_tokens:,} tokens", _left(left_s))
    return Activity(word, _share(progress, left_s), tuple(filter(None, facts)), warning=_busy(running.machine))


def _share(progress: PromptProgress, left_s: float | None) -> float:
    """Return how much of a prompt is done: of its time, once that is known, since later tokens take longer."""
    n_new, n_done = progress.n_tokens - progress.n_cached, progress.n_read - progress.n_cached
    if left_s is None or progress.elapsed_s <= 0:
        return n_done / n_new if n_new > 0 else 0.0
    return progress.elapsed_s / (progress.elapsed_s + left_s)


def _attached(chat: ChatState) -> Iterator[str]:
    """Yield what the last question has besides its text, in a word or two."""
    question = next((each for each in reversed(chat.conversation.branch) if each.role == "user"), None)
    if question is not None and question.attachments:
        only, *others = question.attachments
        yield f"{len(others) + 1} files" if others else printable_line(only.name)


def _waited(running: RunningAnswer, now_s: float) -> Iterator[str]:
    if now_s - running.begun_s >= _FELT_S:
        yield _duration(now_s - running.begun_s)


def _busy(machine: ThreadUse | None) -> str:
    """Return why it is slower than it could be, empty where it is not."""
    if machine is None or not machine.is_machine_busy or machine.others_share is None or not machine.n_processors:
        return ""
    n_taken = max(1, round(machine.others_share * machine.n_processors))
    cores = "core" if machine.n_processors == 1 else "cores"
    return f"slow: other programs use {n_taken} of {machine.n_processors} {cores}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{_duration(seconds)} left"


def _duration(seconds: float) -> str:
    """Return a duration that is seen to pass: "58 s", "3 min 20 s", "1 h 5 min"."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
