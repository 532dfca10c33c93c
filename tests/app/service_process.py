"""The command line as tests start it, and how one process forks many of it.

A service imports for two seconds of processor time, its engine and each of its jobs for one, and a suite starts a
hundred: on Linux one process imports once and forks each service, which forks its engines and jobs; elsewhere each is
a Python started anew. `python -m tests.app.service_process ARGUMENTS` is the command line as it is, but for the
measured memory bandwidth: a service that plans reads a gibibyte seven times, 2.5 s of processor time, where 16 MiB do
for a test.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from quantizer.system.process import python_command

__all__ = ["CommandStarter", "ForkedProcess", "ForkingPopen", "command_starter", "track_indexes"]

_FORKS = "--fork"
_FORKED_MODULES = ("app.engine.chat_template.render", "app.cli.job_process", "quantizer.write.job")  # and see below
_SERVES = ["serve", "--owned"]
_PATIENCE_S = 60.0  # of a fork, for whoever does not close the index


class ForkedProcess:
    """A process that another one forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, forker: socket.socket, environment: Mapping[str, str], arguments: tuple[str, ...]) -> None:
        its_input, our_output = os.pipe()
        our_input, its_output = os.pipe()
        ours, its = socket.socketpair()
        socket.send_fds(forker, [b"!"], [its_input, its_output, its.fileno()])
        for number in (its_input, its_output):
            os.close(number)
        its.close()
        self.stdin, self.stdout = os.fdopen(our_output, "wb"), os.fdopen(our_input, "rb")
        ours.sendall(json.dumps([dict(environment), arguments]).encode() + b"\n")
        self._reports = ours
        self.pid = self._read_number()
        self.returncode: int | None = None

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self.wait()
        self._reports.close()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                self.returncode = self._read_number()
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _read_number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):  # byte by byte: what follows a timeout must find the whole line
            byte = self._reports.recv(1)
            assert byte, "the process that forks has ended"
            line += byte
        return int(line)


class CommandStarter:
    """Starts the command line with piped input and output, forked where `forker` is a process that forks."""

    def __init__(self, forker: socket.socket | None) -> None:
        self._forker = forker

    def start(self, environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._forker is not None:
            return ForkedProcess(self._forker, environment, arguments)
        return subprocess.Popen(
            python_command(__name__, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )


@contextmanager
def command_starter(environment: Mapping[str, str]) -> Iterator[CommandStarter]:
    if sys.platform != "linux":  # macOS's own libraries do not bear a fork without an exec
        yield CommandStarter(None)
        return
    ours, its = socket.socketpair()
    with (
        subprocess.Popen(
            python_command(__name__, _FORKS, str(its.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[its.fileno()],
        ),
        ours,  # it ends where this one is closed
    ):
        its.close()
        yield CommandStarter(ours)


def _fork_commands(door: socket.socket) -> None:
    """Fork a command for each that asks at `door`, and report its process id and its exit status."""
    import app.cli.job_process
    import app.cli.verbs.library
    import app.cli.verbs.service
    import app.engine.chat_template.render
    import app.engine.worker
    import app.service.application
    import app.service.server  # noqa: F401 - what every service, engine and job imports

    gc.freeze()
    asking: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        ready, _, _ = select.select([door, woken], [], [])
        if woken in ready:
            woken.recv(4096)
        while asking:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if process_id == 0:
                break
            with asking.pop(process_id) as asker, contextlib.suppress(OSError):
                asker.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        if door not in ready:
            continue
        message, numbers, _, _ = socket.recv_fds(door, 1, 3)
        if not message:
            return
        asker = socket.socket(fileno=numbers[2])
        with asker.makefile("rb") as lines:
            environment, arguments = json.loads(lines.readline())
        process_id = os.fork()
        if process_id == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (door, woken, wake, asker, *asking.values()):
                other.close()
            _run_here(environment, arguments, numbers[0], numbers[1])
        asker.sendall(b"%d\n" % process_id)
        asking[process_id] = asker
        for number in numbers[:2]:
            os.close(number)


def _run_here(environment: Mapping[str, str], arguments: list[str], reading: int, writing: int) -> NoReturn:
    for number, standard in ((reading, 0), (writing, 1)):
        os.dup2(number, standard)
        os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    track_indexes()
    _main(arguments)


class _OpenIndexes:
    """Which threads of this process have the index of models open.

    A fork takes along what SQLite knows of the files that are open here: for the new process their locks count as its
    own, so that another connection to such a file fails, or commits into a journal that is deleted here (source:
    sqlite.org/howtocorrupt.html, "Carrying an open database file across a fork"). Jobs share the index with their
    service, which reads models into it beside them. Other databases no two of these processes share.
    """

    def __init__(self) -> None:
        self._n_by_thread: Counter[int] = Counter()
        self._changed = threading.Condition()

    def add(self, n_more: int) -> None:
        with self._changed:
            self._n_by_thread[threading.get_ident()] += n_more
            self._changed.notify_all()

    @contextmanager
    def all_closed(self) -> Iterator[None]:
        """Wait until no other thread has it open, and let none open it meanwhile."""
        own = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: not any(n_open for thread, n_open in self._n_by_thread.items() if thread != own),
                timeout=_PATIENCE_S,
            )
            yield


_open_indexes = _OpenIndexes()


def track_indexes() -> None:
    """Let `ForkingPopen` know from now on which threads have the index open."""
    from app.library.local.index import Index

    begin, end = Index.__init__, Index.__exit__

    def opening(index: Index, cache_dir: Path) -> None:
        _open_indexes.add(1)
        try:
            begin(index, cache_dir)
        except BaseException:
            _open_indexes.add(-1)
            raise

    def closing(index: Index, *error: object) -> None:
        try:
            end(index, *error)
        finally:
            _open_indexes.add(-1)

    Index.__init__, Index.__exit__ = opening, closing  # type: ignore[method-assign]


class ForkingPopen(subprocess.Popen[bytes]):
    """Forks this process for a Python that runs one of the modules that are imported here already, a service or an
    engine without native code."""

    def __init__(self, args: Sequence[str], *rest: Any, env: Mapping[str, str] | None = None, **options: Any) -> None:
        match args:
            case [sys.executable, "-P", "-m", str(module), *arguments] if (
                module in _FORKED_MODULES or "--fake" in arguments or arguments[:2] == _SERVES
            ):
                options["preexec_fn"] = partial(
                    _run_module, module, arguments, {**(os.environ if env is None else env)}
                )
        with _open_indexes.all_closed() if "preexec_fn" in options else contextlib.nullcontext():
            super().__init__(args, *rest, env=env, **options)


def _run_module(module: str, arguments: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run `module` as `python -m` would, in a process that was forked for it and has its pipes."""
    global _open_indexes  # whose lock the thread that forked holds, in this process for ever
    _open_indexes = _OpenIndexes()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # one of these tells Popen that the process has started
    os.environ.clear()
    os.environ.update(environment)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = arguments
    # In a process that a forked one forks, these replace such files: they must not close what they stand for.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    status: object = 0
    try:
        with warnings.catch_warnings(action="ignore"):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _main(arguments: list[str]) -> NoReturn:
    import app.engine.load.machine as machine
    from app.cli.main import main
    from offload.devices.bandwidth import measure_read_bandwidth

    machine.measure_read_bandwidth = partial(measure_read_bandwidth, n_bytes=16 << 20)
    sys.argv[1:] = arguments
    main(arguments)


if __name__ == "__main__":
    if sys.argv[1] == _FORKS:
        _fork_commands(socket.socket(fileno=int(sys.argv[2])))
    else:
        _main(sys.argv[1:])
