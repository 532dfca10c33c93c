"""Makes calls of processes to the C library fail: the Nth open, write, fsync, rename, mmap, accept, fork … of a tree.

Owns the preloaded library, which is compiled at first use (`inject.c`), and the file by which its processes count.
Knows nothing of localllm. Linux only, and where there is a C compiler.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ERRORS", "STATE", "Call", "Fault", "Injector", "arm", "is_possible"]

# What each kind of call may fail with, in the order of `inject.c`. EINTR comes once: every caller tries again.
ERRORS: Mapping[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EINTR),
    "create": (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EINTR),
    "write": (errno.ENOSPC, errno.EIO, errno.EINTR),
    "read": (errno.EIO, errno.EINTR),
    "fsync": (errno.ENOSPC, errno.EIO, errno.EINTR),
    "rename": (errno.ENOSPC, errno.EIO, errno.EROFS, errno.ENOMEM),
    "unlink": (errno.EIO, errno.EROFS),
    "mmap": (errno.ENOMEM, errno.EIO),
    "accept": (errno.EMFILE, errno.ENOMEM, errno.EINTR),
    "socket": (errno.EMFILE, errno.ENOMEM),
    "fork": (errno.ENOMEM, errno.EAGAIN),
    "thread": (errno.EAGAIN,),
}
STATE = "FAULT_STATE"  # the variable with the path of the file by which processes count
_KINDS = tuple(ERRORS)
_FOR_GOOD = (1 << 64) - 1
_N_PLANS = 4
_PLAN = struct.Struct("=iiQQ")
_COUNTS_AT = 8 + _N_PLANS * _PLAN.size
_STATE_BYTES = _COUNTS_AT + 8 * len(_KINDS)
_SOURCE = Path(__file__).with_name("inject.c")
_VARYING = re.compile(r"[0-9a-f]{12,}|\d+")


@dataclass(frozen=True, slots=True)
class Fault:
    """The `number`th call of a `kind` fails with `error`; with `lasts`, all later ones do too."""

    kind: str
    number: int
    error: int
    lasts: bool = False

    @classmethod
    def parse(cls, words: str) -> Fault:
        """Read what `str` writes, such as write:17:ENOSPC or create:3+:EROFS. Raises ValueError."""
        kind, number, error = words.split(":")
        if kind not in ERRORS or not hasattr(errno, error):
            raise ValueError(f"{words!r} is not a fault")
        return cls(kind, int(number.rstrip("+")), getattr(errno, error), number.endswith("+"))

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}{'+' if self.lasts else ''}:{errno.errorcode[self.error]}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was counted; `path` is that of its file, "" for a process, thread or socket."""

    kind: str
    number: int
    process: int
    error: int
    function: str
    path: str

    @property
    def place(self) -> tuple[str, str, str]:
        """What is the same for calls that one piece of code makes for one file, whatever numbers are in its name."""
        return self.kind, self.function, _VARYING.sub("#", self.path)


def is_possible() -> str:
    """Return why calls cannot be made to fail here, "" where they can."""
    if sys.platform != "linux":
        return "only Linux preloads the library"
    return "" if shutil.which("cc") else "there is no C compiler (cc)"


def arm(state: str) -> None:
    """Let calls count from now on in the processes whose `STATE` is `state`."""
    with open(state, "r+b", buffering=0) as file:  # noqa: PTH123 - no more calls than needed: it may be one of them
        file.write(struct.pack("=i", 1))


class Injector:
    """Faults in processes that run with `environment`; what they do under `root` counts. Keeps its files in `folder`,
    which is not under `root`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._state, self._log, library = folder / "state", folder / "calls", folder / "inject.so"
        if not library.exists():
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
        self.begin(())
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAULT_ROOT": os.path.realpath(root),
            STATE: str(self._state),
            "FAULT_LOG": str(self._log),
        }

    def begin(self, faults: Sequence[Fault], *, logs_all: bool = False) -> None:
        """Count from one again, and plan `faults`, four at most. Whoever starts the processes lets them count:
        see `arm`."""
        plans = [
            _PLAN.pack(_KINDS.index(it.kind), it.error, it.number, _FOR_GOOD if it.lasts else it.number)
            for it in faults
        ]
        state = struct.pack("=ii", 0, logs_all) + b"".join(plans)
        self._log.write_bytes(b"")
        with self._state.open("r+b" if self._state.exists() else "wb") as file:  # in place: processes have it mapped
            file.write(state.ljust(_STATE_BYTES, b"\0"))

    def end(self) -> list[Call]:
        """Let no more call fail, and return those that were logged."""
        with self._state.open("r+b") as state:
            state.write(struct.pack("=i", 0))
        rows = (line.split("\t") for line in self._log.read_text("utf-8", "replace").splitlines())
        return [Call(row[0], *map(int, row[1:4]), row[4], row[5]) for row in rows if len(row) == 6]
