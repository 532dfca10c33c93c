"""The child process that reads an untrusted file; it is killed when that takes too much time or memory, in a step or
in all, and when nobody waits for it any more. Who reads many files may let a child read several.

Owns the process, its limits and the form of its reply. `app.chat.attachments.parse` is the child.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO

from app.chat.attachments.kinds import FileKind
from app.chat.attachments.parsing import MAX_CHARACTERS, MAX_PICTURES, PageChoice, ParsedFile
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit
from quantizer.system.process import child_environment, python_command

if TYPE_CHECKING:
    from quantizer.system.process_tree import ChildWatch

TIMEOUT_S = 2.0  # of processor time, between two pages of a document
# Of processor time in all. A dense page of text takes 0.6 ms, so that 5,000 with many fonts fit; a file of 35 kB that
# names one heavy page 4,999 times took an hour with a limit for each page alone.
TOTAL_S = 30.0
MAX_GROWTH_BYTES = 1 << 30
# More time for larger files, a MiB and at most: three times what honest ones took.
_EXTRA_S = {
    "docx": (4.0, 16.0),
    "html": (2.0, 8.0),
    "web page": (4.0, 16.0),
    "notebook": (0.2, 8.0),
    "table": (1.0, 4.0),
    "sound": (0.1, 10.0),
}
_START_TIMEOUT_S = 30.0  # Python may start this slowly from a cold disk; the file gets its own time
_MAX_RESIDENT_BYTES = MAX_GROWTH_BYTES + (128 << 20)  # with Python and a library
_MAX_LINE_BYTES = 65_536
_MAX_PICTURE_BYTES, _MAX_PICTURES_BYTES = 16 << 20, 96 << 20  # of one page, and of all: what one prompt can carry
_WITHOUT_NATIVE_CODE = ("docx", "html", "notebook", "table")
_MAX_KEPT_BYTES, _MAX_KEPT_FILES = 1 << 20, 100  # of a file after which a child is kept, and of files that it reads
_NAME = "file reader"


class ReadBudget:
    """What the files of one request may take in all: `left_s` of processor time, one file after the other. `stop` ends
    the child that reads, from any thread, and any that is started later: who asked has gone."""

    def __init__(self, total_s: float = TOTAL_S) -> None:
        self.left_s = total_s
        self.is_stopped = False
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            if self._child is not None:
                self._child.kill()

    def holds(self, child: subprocess.Popen[bytes]) -> None:
        """Take over `child`, which `stop` ends from now on."""
        with self._lock:
            self._child = child
            if self.is_stopped:
                child.kill()

    def releases(self, child: subprocess.Popen[bytes]) -> None:
        """Let `child` go: it has read its file, and `stop` must not end what it reads for another request."""
        with self._lock:
            if self._child is child:
                self._child = None


class KeptParsers:
    """Children that have read a file and wait for the next one of their kind: starting one takes 0.5 s of a processor,
    a small page 0.05. Only parsers without native code are kept, after small files that they could read, and not for
    long, so that no file finds a process that another one spoilt or filled. From any thread; `close` ends them."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[subprocess.Popen[bytes], int]]] = {}
        self._n_read: dict[int, int] = {}
        self._lock = threading.Lock()

    def take(self, parser: str) -> subprocess.Popen[bytes] | None:
        """Return a child of `parser` that waits, None where none does."""
        with self._lock:
            waiting = self._waiting.get(parser, [])
            while waiting:
                child, n_read = waiting.pop()
                if child.poll() is None:
                    self._n_read[child.pid] = n_read
                    return child
                _end(child)
        return None

    def keep(self, parser: str, child: subprocess.Popen[bytes], n_bytes: int) -> bool:
        """Keep a child that has read a file of `n_bytes`; return False where it has to end."""
        with self._lock:
            n_read = self._n_read.pop(child.pid, 0) + 1
            if parser not in _WITHOUT_NATIVE_CODE or n_bytes > _MAX_KEPT_BYTES or n_read >= _MAX_KEPT_FILES:
                return False
            self._waiting.setdefault(parser, []).append((child, n_read))
            return True

    def close(self) -> None:
        with self._lock:
            for child, _ in (each for waiting in self._waiting.values() for each in waiting):
                _end(child)
            self._waiting.clear()


def parse(
    data: bytes,
    kind: FileKind,
    name: str,
    pages: PageChoice,
    budget: ReadBudget | None = None,
    kept: KeptParsers | None = None,
) -> ParsedFile:
    """Return what `data`, a file of `kind` called `name`, says, by one of the children of `kept` where that has one.
    Raises UsageError for a file that is damaged or protected, or that takes more than 2 s between pages (large ones
    longer), more than what `budget` has left (None: 30 s) or 1 GiB, EngineError if the child cannot be started."""
    from quantizer.system.process_tree import ChildWatch, Excess  # psutil: neither texts nor the child need it

    budget = budget or ReadBudget()
    job = {"parser": kind.parser, "name": name, "pages": asdict(pages), "n_bytes": len(data)}
    s_per_mib, most_s = _EXTRA_S.get(kind.parser, (0.0, 0.0))
    timeout_s = TIMEOUT_S + min(most_s, s_per_mib * len(data) / (1 << 20))
    waiting = kept.take(kind.parser) if kept is not None else None
    child = waiting or _started()
    is_sound = False
    try:
        budget.holds(child)
        with ChildWatch(child, _START_TIMEOUT_S, _MAX_RESIDENT_BYTES) as watch:
            try:
                reply = _exchanged(child, job, data, watch, timeout_s, budget.left_s, is_ready=waiting is not None)
                is_sound = isinstance(reply, ParsedFile)
            finally:
                budget.left_s = max(0.0, budget.left_s - watch.used_s())
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = {
            Excess.TIME: "takes too long to read",
            Excess.MEMORY: "needs too much memory to read",
            None: "cannot be read: it is damaged, or needs too much memory",
        }[watch.excess]
        remedy = f"Write {kind.words} anew with a program that can open it, or a part of it."
        raise UsageError(f"{name} {what}.", remedy) from error
    finally:
        budget.releases(child)
        if not (is_sound and kept is not None and kept.keep(kind.parser, child, len(data))):
            _end(child)
    if isinstance(reply, ParsedFile):
        return reply
    raise UsageError(f"{name} {reply['cause']}", str(reply["remedy"]))


def _started() -> subprocess.Popen[bytes]:
    check_memory_limit(_NAME, ProcessBytes.JOB)
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        options["creationflags"] = subprocess.CREATE_NO_WINDOW
    else:
        options["start_new_session"] = True  # Ctrl-C of the terminal is the caller's
    try:
        return subprocess.Popen(
            python_command("app.chat.attachments.parse"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            **options,
        )
    except OSError as error:
        raise EngineError(f"The {_NAME} cannot be started: {error.strerror}.", "Free memory or processes.") from error


def _exchanged(
    child: subprocess.Popen[bytes],
    job: dict[str, Any],
    data: bytes,
    watch: ChildWatch,
    timeout_s: float,
    total_s: float,
    *,
    is_ready: bool,
) -> ParsedFile | dict[str, Any]:
    """Send the file once the child is ready, as one that has read another file is, and return what it says, or the
    cause and the remedy of a refusal. Raises OSError, ValueError, KeyError or TypeError where the child ends or sends
    anything else. The child has its input open until its end, by which it notices that this process is gone."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(job).encode() + b"\n")
    child.stdin.flush()

    def send_file() -> None:
        watch.allow_in_all(total_s)
        stdin.write(data)
        stdin.flush()
        watch.allow(timeout_s)

    stdin = child.stdin
    if is_ready:
        send_file()
    while line := child.stdout.readline(_MAX_LINE_BYTES):
        message = json.loads(line)
        if not isinstance(message, dict):
            raise TypeError("a message is not an object")
        if "progress" not in message:
            break
        if message["progress"] == "ready":
            send_file()
        else:
            watch.allow(timeout_s)
    else:
        raise ValueError("the child ended without a reply")
    if "cause" in message:
        return message
    text = _blob(child.stdout, message["n_text_bytes"], 4 * MAX_CHARACTERS).decode()
    if len(message["pictures"]) > MAX_PICTURES or sum(message["pictures"]) > _MAX_PICTURES_BYTES:
        raise ValueError("too many or too large pictures")
    pictures = tuple(_blob(child.stdout, n_bytes, _MAX_PICTURE_BYTES) for n_bytes in message["pictures"])
    return ParsedFile(text, str(message["detail"]), pictures)


def _blob(pipe: BinaryIO | Any, n_bytes: int, max_bytes: int) -> bytes:
    if not 0 <= n_bytes <= max_bytes:
        raise ValueError("the reply is too large")
    data: bytes = pipe.read(n_bytes)
    if len(data) != n_bytes:
        raise ValueError("the child ended while it replied")
    return data


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with suppress(OSError):  # what was not written to a dead child
            pipe.close()
    child.wait()
