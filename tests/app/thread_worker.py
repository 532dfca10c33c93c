"""Engine workers that run in threads of the test process: the same messages, without the start of a process."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

from app.engine.fake import fake_loader
from app.engine.worker import Worker
from app.service.pool.worker_process import StartWorker, WorkerProcess
from quantizer.system.process import StderrTail
from tests.patience import PATIENCE_S

__all__ = ["thread_worker"]

_NO_PIDS = itertools.count(1 << 23)  # beyond what systems give to processes


def thread_worker(*, step_ms: float = 0.0, load_ms: float = 0.0, is_unfit: bool = False) -> StartWorker:
    """Return what starts a worker over the fake model in threads."""

    async def start() -> WorkerProcess:
        return WorkerProcess(_Threads(step_ms / 1000, load_ms / 1000, is_unfit))  # type: ignore[arg-type]

    return start


class _Threads:
    """Takes the place of a ChildProcess."""

    def __init__(self, step_s: float, load_s: float, is_unfit: bool) -> None:
        self.pid = next(_NO_PIDS)
        self.stdout = asyncio.StreamReader()
        self.stderr = StderrTail()
        self._loop = asyncio.get_running_loop()
        read_fd, self._write_fd = os.pipe()
        self._messages = os.fdopen(read_fd, "rb")
        self._worker = Worker(self._messages.read, self._receive, fake_loader(step_s, load_s, is_unfit=is_unfit))
        self._threads = [threading.Thread(target=self._worker.read_messages), threading.Thread(target=self._run)]
        for thread in self._threads:
            thread.start()

    def write(self, data: bytes) -> None:
        os.write(self._write_fd, data)

    async def end(self, _grace_s: float) -> int:
        os.close(self._write_fd)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
        self._messages.close()
        return 0

    def _run(self) -> None:
        try:
            self._worker.run_engine()
        finally:
            self._loop.call_soon_threadsafe(self.stdout.feed_eof)

    def _receive(self, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self.stdout.feed_data, data)
