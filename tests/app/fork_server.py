"""A process that forks the Pythons which tests start, instead of letting each import for a second or two.

A service imports for two seconds of processor time, its engine and each of its jobs for one, and a suite starts a
hundred. A process with threads must not be forked for them: a lock that another thread holds at that moment, of an
import, of SQLite's memory, of a file that is open, stays locked in the child for ever (source: fork(2), and
sqlite.org/howtocorrupt.html, "Carrying an open database file across a fork"). So whoever starts such children forks
one process first of all, while it has a single thread, and that one forks all of them. They become its own children
nevertheless: each is forked twice, and what loses its parent gets the nearest "subreaper" for one (source: prctl(2)).

Linux only: macOS's own libraries do not bear a fork without an exec. There each is a Python started anew.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

__all__ = ["NAME", "ForkServer", "ForkingPopen", "begin"]

NAME = "fork server"  # by which tests that look for their children tell it from them

_FORKED_MODULES = (
    *("app.cli.job_process", "app.engine.chat_template.render", "quantizer.write.job"),
    "tests.app.service_process",  # and see `_is_forked`
)
# What every command, service, engine and job imports.
_IMPORTS = (
    *("app.cli.job_process", "app.cli.verbs.library", "app.cli.verbs.service", "app.engine.chat_template.render"),
    *("app.engine.worker", "app.service.application", "app.service.server"),
)
_SERVES = ["serve", "--owned"]
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36  # linux/prctl.h


class ForkServer:
    """The process that forks, begun where this is made. It ends with this process, or when it is closed."""

    def __init__(self) -> None:
        self._door, its = socket.socketpair()
        self._is_free = threading.Lock()  # of one request after the other
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        with warnings.catch_warnings(action="ignore"):  # pytest-xdist's thread, which only reads a pipe, is no danger
            process_id = os.fork()
        if process_id == 0:
            self._door.close()
            _serve(its)
        its.close()

    def close(self) -> None:
        self._door.close()

    def start(self, module: str, arguments: Sequence[str], files: Sequence[int], **how: object) -> int:
        """Return the number of a new child of this process, which runs `module` as `python -m` would. `files` are its
        three standard ones; `how` are the environment, the folder, and whether it begins a session."""
        request = json.dumps({"module": module, "arguments": list(arguments), **how})
        with self._is_free:
            socket.send_fds(self._door, [b"!"], list(files))
            self._door.sendall(request.encode() + b"\n")
            return int(_line(self._door))


class ForkingPopen(subprocess.Popen[bytes]):
    """Has `server` fork a Python that runs one of the modules that are imported there, a service or an engine without
    native code."""

    server: ClassVar[ForkServer]

    def _execute_child(self, *values: Any) -> None:
        its = inspect.signature(super()._execute_child).bind(*values).arguments  # type: ignore[misc]
        match its["args"]:
            case [sys.executable, "-P", "-m", str(module), *arguments] if its["preexec_fn"] is None and (
                module in _FORKED_MODULES or "--fake" in arguments or arguments[:2] == _SERVES
            ):
                pass
            case _:
                super()._execute_child(*values)  # type: ignore[misc]
                return
        standard = (its["p2cread"], its["c2pwrite"], its["errwrite"])
        folder = Path(its["cwd"] or Path.cwd())
        folder.stat()  # as a start would fail
        environment = {**(os.environ if its["env"] is None else its["env"])}
        files = [number if given == -1 else given for number, given in enumerate(standard)]
        self.pid = self.server.start(
            module, arguments, files, environment=environment, folder=str(folder), is_session=its["start_new_session"]
        )
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(its[end] for end in ends))  # type: ignore[attr-defined]


def begin() -> None:
    """Begin this process's server, before it starts threads, and have `subprocess` use it."""
    ForkingPopen.server = ForkServer()
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _line(door: socket.socket) -> bytes:
    """Return a request, or its answer. Nothing follows either, before the other side has spoken."""
    line = b""
    while not line.endswith(b"\n"):
        part = door.recv(65536)
        assert part, "the process at the other end has ended"
        line += part
    return line


def _serve(door: socket.socket) -> NoReturn:
    """Fork a child for each request that comes through `door`, and answer with its number."""
    status = 1
    try:
        _prctl(_PR_SET_NAME, NAME.encode())
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.chdir("/")
        _leave_files(kept=[door.fileno()])
        logging.getLogger().handlers.clear()  # pytest's, which would keep what a child logs
        for name in _IMPORTS:
            importlib.import_module(name)
        gc.freeze()
        while (received := socket.recv_fds(door, 1, 3))[0]:
            files = received[1]
            request = json.loads(_line(door))
            door.sendall(b"%d\n" % _fork_twice(request, files))
            for number in files:
                os.close(number)
        status = 0
    finally:
        os._exit(status)


def _leave_files(kept: Sequence[int]) -> None:
    """Put the null device in place of each open file but those `kept`. Objects of the process that was forked, as a
    handler of logs, still stand for these numbers: they would write into what gets a number next, or close it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in {int(each.name) for each in Path("/proc/self/fd").iterdir()}.difference(kept, [nothing]):
        os.dup2(nothing, number, inheritable=False)


def _fork_twice(request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Return the number of a new process whose parent is the one that asks."""
    numbers, telling = os.pipe()
    gate, opening = os.pipe()
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            os.close(opening)
            os.read(gate, 1)  # until the process between has ended, and this one has its parent
            _run(request, files)
        os.write(telling, b"%d" % child)
        os._exit(0)
    os.close(telling)
    child = int(os.read(numbers, 32))
    os.waitpid(between, 0)
    for number in (numbers, gate, opening):
        os.close(number)
    return child


def _run(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Run the requested module as `python -m` would, with a server of its own for its children."""
    status: object = 1
    try:
        _prctl(_PR_SET_NAME, b"python")
        for number, standard in enumerate(files):
            os.dup2(standard, number)
        _leave_files(kept=(0, 1, 2))
        if request["is_session"]:
            os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        begin()
        # In a process that a forked one forks, these replace such files: they must not close what they stand for.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv[1:] = request["arguments"]
        status = 0
        with warnings.catch_warnings(action="ignore"):
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
