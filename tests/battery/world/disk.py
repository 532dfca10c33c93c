"""The disk of a simulated world: real files in a folder, whose writes may fail for a while and end with their process.

What a simulated process does to files, locks and SQLite's databases passes here, where Python's library does it. Each
such operation may be its last; in a thread others may run before it; while the disk fails, those that write raise what
a full or failing disk does. What the world itself does to files is not touched. Where the world's `power` may fail, it
learns here what is synced.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from quantizer.system import files
from tests.battery.world.clock import Clock
from tests.battery.world.lives import Life
from tests.battery.world.loop import LIFE
from tests.battery.world.power import Power
from tests.battery.world.threads import KilledError, pause

__all__ = ["Disk", "Fault"]

_BUSY_POLL_S = 0.01
_GIVES_WAY = 0.12  # how often others run before an operation of a thread
# By the name in `os`: which of its arguments are paths.
_PATH_CALLS = {
    **dict.fromkeys(("unlink", "remove", "mkdir", "rmdir", "truncate", "chmod"), (0,)),
    **dict.fromkeys(("rename", "replace", "link", "symlink"), (0, 1)),
}
_WRITING_SQL = re.compile(
    r"\s*(INSERT|UPDATE|DELETE|REPLACE|COMMIT|CREATE|ALTER|DROP|VACUUM"
    r"|PRAGMA\s+(journal_mode|user_version\s*=|wal_checkpoint|incremental_vacuum))",
    re.IGNORECASE,
)
_SQLITE_ERRORS = {
    errno.ENOSPC: ("database or disk is full", sqlite3.SQLITE_FULL),
    errno.EIO: ("disk I/O error", sqlite3.SQLITE_IOERR_WRITE),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Writes to paths below the world's folder that begin with one of `places` fail with `code` from `begin_s` to
    `end_s` of the clock."""

    begin_s: float
    end_s: float
    code: int
    places: tuple[str, ...]


class Disk:
    """The disk below `root`, which the processes `lives` use. `n_failed` operations failed so far. `power` is that of
    its machine, None for one that never fails."""

    def __init__(self, root: Path, clock: Clock, lives: Mapping[int, Life], power: Power | None = None) -> None:
        self.power = power
        self.faults: list[Fault] = []
        self.n_failed = 0
        self._lives = lives
        self._root = f"{root}{os.sep}"
        self._clock = clock
        self._opened: dict[int, str] = {}  # paths by descriptor
        self._real_open, self._real_close = os.open, os.close
        self._real_pid = os.getpid
        self._real_connect, self._real_file = sqlite3.connect, io.open

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Take the place of the system's disk inside the context."""
        with ExitStack() as stack:

            def put(target: Any, name: str, value: Any) -> None:
                stack.enter_context(patch.object(target, name, value))

            put(os, "open", self._open_descriptor)
            put(os, "close", self._close_descriptor)
            put(os, "write", self._with_descriptor(os.write, is_data=True))
            put(os, "fsync", self._with_descriptor(os.fsync))
            put(os, "utime", self._utime)
            for name, places in _PATH_CALLS.items():
                put(os, name, self._with_paths(getattr(os, name), places))
            put(io, "open", self._open_file)
            put(builtins, "open", self._open_file)
            put(os, "getpid", self._pid)
            put(psutil, "Process", self._process_class())
            put(sqlite3, "connect", self._connect)
            put(files, "Lock", self._lock)
            yield
        self._lives = {}  # a module that was imported meanwhile may keep a function of this disk for ever

    def fails(self, path: str) -> int:
        """Return the error that writing `path` ends with now, 0 for none."""
        name = path.removeprefix(self._root)
        for fault in self.faults:
            if fault.begin_s <= self._clock.now_s < fault.end_s and name.startswith(fault.places):
                return fault.code
        return 0

    def begin(self, path: str, *, writes: bool) -> int:
        """Begin an operation on `path`; return the error that it ends with, 0 for none. Raises KilledError where its
        process ends with it, or has ended."""
        life = LIFE.get()
        if life is None or not path.startswith(self._root):
            return 0
        if life.is_over:
            raise KilledError
        life.n_operations += 1
        if life.n_operations == life.dies_at:
            life.die()
            raise KilledError
        if self._clock.chance.random() < _GIVES_WAY:
            pause(self._clock.delay_s(0.002))
        code = self.fails(path) if writes else 0
        self.n_failed += code > 0
        return code

    def _check(self, path: str, *, writes: bool = True) -> None:
        if code := self.begin(path, writes=writes):
            raise OSError(code, os.strerror(code), path)

    # Files

    def _open_descriptor(self, path: Any, flags: int, *args: Any, **named: Any) -> int:
        if LIFE.get() is None or named.get("dir_fd") is not None:
            return self._real_open(path, flags, *args, **named)
        name = os.fsdecode(path)
        if flags & (os.O_CREAT | os.O_TRUNC):  # what is only read may be in a cache: it must not count
            self._check(name)
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(name)
        descriptor = self._real_open(path, flags, *args, **named)
        if is_new:
            self._created(name)
        if name.startswith(self._root):
            self._opened[descriptor] = name
            if flags & os.O_CREAT:
                os.utime(descriptor)
        return descriptor

    def _created(self, path: str) -> None:
        if self.power is not None and path.startswith(self._root):
            self.power.created(Path(path))

    def _close_descriptor(self, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        self._real_close(descriptor)

    def _with_descriptor(self, real: Callable[..., Any], *, is_data: bool = False) -> Callable[..., Any]:
        def call(descriptor: int, *args: Any) -> Any:
            path, life = self._opened.get(descriptor, ""), LIFE.get()
            was_over = life is not None and life.is_over
            try:
                self._check(path)
            except (KilledError, OSError):
                if is_data and not was_over and self._clock.chance.random() < 0.5:
                    real(descriptor, args[0][: len(args[0]) // 2])  # a part of it is there
                raise
            done = real(descriptor, *args)
            if self.power is not None and path and real.__name__ == "fsync":
                self.power.synced(Path(path), os.fstat(descriptor).st_ino)
            return done

        return call

    def _with_paths(self, real: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if LIFE.get() is not None and named.get("dir_fd") is None:
                # a full disk still removes
                self._check(os.fsdecode(args[places[-1]]), writes=real.__name__ not in ("unlink", "remove", "rmdir"))
            done = real(*args, **named)
            if LIFE.get() is not None and real.__name__ in ("mkdir", "symlink"):
                self._created(os.fsdecode(args[places[-1]]))
            return done

        return call

    def _utime(self, path: Any, times: Any = None, **named: Any) -> None:
        """Set the times of a file; now is that of the world."""
        if times is None and "ns" not in named:
            times = (self._clock.time(), self._clock.time())
        _real_utime(path, times, **named)

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        life = LIFE.get()
        path = self._opened.get(file, "") if isinstance(file, int) else os.fsdecode(os.fspath(file))
        if life is None or not path.startswith(self._root) or not set(mode) & set("wax+"):
            return self._real_file(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if opener is None and not isinstance(file, int):
            self._check(path)
        is_new = opener is None and not isinstance(file, int) and not os.path.lexists(path)
        raw = _File(self, life, path, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if is_new:
            self._created(path)
        os.utime(raw.fileno())
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    # Processes

    def _pid(self) -> int:
        life = LIFE.get()
        # a library that watches for forks would take each life for one
        is_watching = sys._getframe(1).f_globals.get("__name__", "").startswith("filelock")
        return self._real_pid() if life is None or is_watching else life.pid

    def _process_class(self) -> type[psutil.Process]:
        """Return what takes the place of `psutil.Process`: the numbers of simulated processes are those of no real one,
        and their figures those of this one."""
        disk, real, real_pid = self, psutil.Process, os.getpid()

        class Process(real):  # type: ignore[misc, valid-type]
            def __new__(cls, pid: int | None = None) -> Any:
                life = disk._lives.get(disk._pid() if pid is None else pid)
                if life is None:
                    return real(pid)
                if life.is_over:
                    raise psutil.NoSuchProcess(life.pid)
                return real(real_pid)

        return Process

    def _lock(self, path: Path, held: Any) -> files.Lock:
        lock = _real_lock(path, held)
        if (life := LIFE.get()) is not None:
            life.held.append(_HeldLock(held))
        return lock

    # SQLite

    def _connect(self, path: Any, *args: Any, **named: Any) -> sqlite3.Connection:
        life = LIFE.get()
        if life is None or not str(path).startswith(self._root):
            return self._real_connect(path, *args, **named)
        timeout_s = named.pop("timeout", 5.0)
        made: _Connection = self._real_connect(
            path, *args, timeout=0.0, check_same_thread=False, factory=_Connection, **named
        )
        made.prepare(self, self._clock, life, str(path), timeout_s)
        life.held.append(made)
        return made


_real_lock, _real_utime = files.Lock, os.utime


class _File(io.FileIO):
    """An open file of a simulated process."""

    def __init__(self, disk: Disk, life: Life, path: str, *args: Any) -> None:
        super().__init__(*args)
        self._disk, self._life, self._place = disk, life, path
        disk._opened[self.fileno()] = path

    def write(self, data: Any) -> int:
        if self._life.is_over:  # what was in Python's buffer is lost
            return len(data)
        try:
            self._disk._check(self._place)
        except (KilledError, OSError):
            if self._disk._clock.chance.random() < 0.5:
                super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._disk._check(self._place)
        return super().truncate(size)

    def close(self) -> None:
        if not self.closed:
            self._disk._opened.pop(self.fileno(), None)
            if not self._life.is_over and not self._disk.fails(self._place):
                os.utime(self.fileno())
        super().close()


@dataclass(frozen=True, slots=True)
class _HeldLock:
    """A lock of a file, which ends with its process."""

    held: Any

    def take_back(self) -> None:
        if (descriptor := self.held._context.lock_file_fd) is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


class _Connection(sqlite3.Connection):
    """A connection of a simulated process, which waits for others by the simulated clock."""

    def prepare(self, disk: Disk, clock: Clock, life: Life, path: str, timeout_s: float) -> None:
        self._disk, self._clock, self._life, self._path, self._timeout_s = disk, clock, life, path, timeout_s
        self._thread = threading.get_ident()
        self._is_closed = False
        self._n_changes = 0  # before the transaction

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return self._run(sql, lambda: super(_Connection, self).execute(sql, *args))

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return self._run(sql, lambda: super(_Connection, self).executemany(sql, *args))

    def executescript(self, sql: str) -> sqlite3.Cursor:
        return self._run(sql, lambda: super(_Connection, self).executescript(sql))

    def close(self) -> None:
        if not self._life.is_over:
            self._disk.begin(self._path, writes=False)
        self._is_closed = True
        super().close()

    def take_back(self) -> None:
        """Close it as the end of a process does: the journal stays as it is, and nothing is written back."""
        if self._is_closed:
            return
        self._is_closed = True
        paths = [Path(f"{self._path}{suffix}") for suffix in ("", "-wal", "-shm")]
        before = [path.read_bytes() if path.exists() else b"" for path in paths]
        super().close()
        if before[1] and not paths[1].exists():  # it was the last one, and SQLite tidied up
            for path, data in zip(paths, before, strict=True):
                path.write_bytes(data)

    def _run(self, sql: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if self._life.is_over:
            raise KilledError
        if self._thread != threading.get_ident():
            raise sqlite3.ProgrammingError("SQLite objects created in a thread can only be used in that same thread.")
        writes = _WRITING_SQL.match(sql) is not None and (sql != "COMMIT" or self.total_changes > self._n_changes)
        if sql == "PRAGMA synchronous = NORMAL" and self._disk.power is not None:
            self._disk.power.forgetful.add(Path(self._path))
        if sql.startswith("BEGIN"):
            self._n_changes = self.total_changes
        code = self._disk.begin(self._path, writes=writes)
        if code:
            if self.in_transaction and self._clock.chance.random() < 0.5:  # SQLite often takes it back by itself
                super().execute("ROLLBACK")
            raise _sqlite_error(code)
        found = self._patiently(run)
        if sql == "COMMIT" and self._clock.chance.random() < 0.3:
            pause(self._clock.delay_s(0.002))  # it is on the disk, and nobody knows yet
        return found

    def _patiently(self, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        """Run a statement once others let go of the file, as SQLite does within its timeout."""
        until_s = self._clock.now_s + self._timeout_s
        while True:
            try:
                return run()
            except sqlite3.OperationalError as error:
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or self._clock.now_s >= until_s or not pause(_BUSY_POLL_S):
                    raise


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    text, sqlite_code = _SQLITE_ERRORS[code]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = sqlite_code
    return error
