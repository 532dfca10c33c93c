from __future__ import annotations

import errno
import os

import pytest

from quantizer.system.errors import EngineError, StorageError, UserError
from quantizer.system.faults import reported_faults, system_fault
from quantizer.system.files import explained


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/d/a"),
            StorageError,
            "/d/a cannot be read or written: No s",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageError, "The command failed: Disk quota exceeded. Free"),
        (OSError(errno.EROFS, "Read-only file system", "/d/a"), StorageError, "mount the file system for writing"),
        (OSError(errno.EIO, "Input/output error"), StorageError, "The disk or its connection may be failing"),
        (OSError(errno.EMFILE, "Too many open files", "/d/a"), EngineError, "raise the limit on open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), EngineError, "End other programs"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), EngineError, "limit on processes"),
        (MemoryError(), EngineError, "The command has not enough memory"),
        (RuntimeError("can't start new thread"), EngineError, "lets the command start no more threads"),
    ],
)
def test_what_the_system_refuses_is_one_error_with_what_helps_against_it(
    error: Exception, kind: type[UserError], sentence: str
) -> None:
    with pytest.raises(kind) as raised, reported_faults("command"):
        raise error
    assert sentence in str(raised.value)
    assert raised.value.remedy


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file"), ValueError("no"), RuntimeError("other"), OSError("odd")]
)
def test_other_errors_are_bugs_and_keep_their_traceback(error: Exception) -> None:
    assert system_fault("command", error) is None
    with pytest.raises(type(error)), reported_faults("command"):
        raise error


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "Correct its rights."),
        (errno.ENOSPC, "Correct its rights."),
        (errno.EMFILE, "End other programs, or raise the limit on open files (`ulimit -n`)."),
        (errno.ENOMEM, "End other programs, or use a smaller model or context."),
        (errno.EINTR, "Try again."),
        (errno.EIO, "The disk or its connection may be failing: check it, and keep a copy of what is on it."),
    ],
)
def test_what_a_room_advises_about_a_path_gives_way_to_what_helps_against_a_fault_of_the_system(
    number: int, remedy: str
) -> None:
    with pytest.raises(StorageError) as raised, explained("a cannot be read", "Correct its rights."):
        raise OSError(number, os.strerror(number), "a")
    assert raised.value.remedy == remedy


def test_without_advice_of_the_room_the_remedy_is_that_of_the_error() -> None:
    with pytest.raises(StorageError, match="Free some space"), explained("a cannot be written"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
