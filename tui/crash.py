"""What is left of a crash: a few lines for the person, and a report in a file.

Owns which part of an error may be told: of what type it is and where in the code it arose, and never what it says or
what the code held then, for both may be chats, or control sequences that a model wrote. Knows nothing of the app.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from app import __version__
from app.terminal import printable

__all__ = ["keep_report", "report_of", "tell_crash", "tell_unseen"]

_HOUSE = Path(__file__).parents[1]
_ROOMS = {"app", "offload", "quantizer", "tui"}
_N_KEPT = 10


def tell_crash(error: BaseException, folder: Path, *, is_kept: bool) -> int:
    """Say on standard error what ended the app and how to go on; return the exit status. The report goes into `folder`,
    or to standard error where that takes none. `is_kept`: what was said is on the disk."""
    _say(
        f"localllm has crashed: {_nature(error)}.",
        "Everything that was said is kept." if is_kept else "What was said in the last seconds may not be kept.",
        _whereabouts([error], folder),
        "Start it again as before: localllm",
    )
    return 1


def tell_unseen(errors: Sequence[BaseException], folder: Path) -> None:
    """Say that parts have failed without an end of the app, and keep the report."""
    _say(f"A part of localllm has failed meanwhile: {_nature(errors[0])}.", _whereabouts(errors, folder))


def _say(*lines: str) -> None:
    sys.stderr.write(printable("".join(f"{line}\n" for line in lines)))


def _whereabouts(errors: Sequence[BaseException], folder: Path) -> str:
    report = report_of(errors)
    try:
        return f"The full report, without a word of your chats: {keep_report(report, folder, datetime.now())}"
    except OSError as error:
        return f"The report cannot be written into {folder} ({error.strerror}), so it is here:\n\n{report}"


def report_of(errors: Sequence[BaseException]) -> str:
    """Return the types of the errors and of those that led to them, the first one first, and where each arose: without
    their messages and without the values of variables."""
    made_with = (
        f"localllm {__version__}, Textual {version('textual')}, Python {platform.python_version()}, "
        f"{platform.platform()}\n"
    )
    return printable(made_with + "".join(f"\n{_told(each)}" for error in errors for each in _chain(error)))


def keep_report(report: str, folder: Path, now: datetime) -> Path:
    """Write the report into a new file in `folder` that its owner alone may read, and forget the oldest of more than
    ten; return its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{now:%Y-%m-%d-%H%M%S}-{os.getpid()}.txt"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(report)
    for old in sorted(folder.glob("crash-*.txt"))[:-_N_KEPT]:
        old.unlink(missing_ok=True)
    return path


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield what led to an error, what a group of errors holds, and then the error."""
    if error is not None:
        yield from _chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        for part in getattr(error, "exceptions", ()):
            yield from _chain(part)
        yield error


def _told(error: BaseException) -> str:
    frames = traceback.format_list(_frames(error))
    return f"{_nature(error)}\n{''.join(frames)}"


def _nature(error: BaseException) -> str:
    """Return what kind of error it is and where in our code, or else in another's, it arose."""
    name = type(error).__qualname__
    if isinstance(error, OSError) and error.errno is not None:
        name += f" ({os.strerror(error.errno)})"
    frames = _frames(error)
    if not frames:
        return name
    ours = [frame for frame in frames if _is_ours(frame)]
    frame = (ours or frames)[-1]
    path = Path(frame.filename)
    place = path.relative_to(_HOUSE).as_posix() if _is_ours(frame) else path.name
    return f"{name} in {place}, line {frame.lineno} ({frame.name})"


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), capture_locals=False)


def _is_ours(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    return path.is_relative_to(_HOUSE) and path.relative_to(_HOUSE).parts[0] in _ROOMS
