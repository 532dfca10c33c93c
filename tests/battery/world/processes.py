"""The child processes of a simulated world: engine workers, the renderer of templates, and jobs.

`ChildProcess` of the product meets them where asyncio starts a process: their pipes deliver late, in pieces, and may
break in the middle of a message. Each may be killed at any time, by the product or by the world.
"""

from __future__ import annotations

import asyncio
import json
import queue
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from contextvars import Context
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.batch.requests import BatchRequest, read_requests
from app.batch.run import OutputFile, Tally, run_batch
from app.client.service_client import ServiceClient
from app.engine import worker
from app.engine.chat_template.render import render
from app.engine.fake import FakeBackend, FakeEmbedder
from app.engine.load.loading import LoadedEngine, LoadListener
from app.engine.messages import Load
from app.engine.speculative.cost_model import StepCost
from app.engine.worker import Worker
from app.protocol.chat import BATCH, PRIORITY_HEADER
from quantizer.system.errors import EngineError, ErrorInfo, UserError
from tests.battery.world.clock import Clock
from tests.battery.world.lives import Life
from tests.battery.world.loop import LIFE, SimulatedLoop
from tests.battery.world.network import Network
from tests.battery.world.threads import KilledError, SimulatedEvent, SimulatedQueue, Turns

__all__ = ["Process", "Processes"]

_FIRST_PID = 1 << 23  # beyond what systems give to processes
_N_BATCH_ANSWERS = 8


class _Pipe(asyncio.WriteTransport):
    """The end of a pipe that the service writes to."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._is_closing = False

    def write(self, data: Any) -> None:
        self._process.deliver_in(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._process.deliver_in(b"")

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.close()


class Process(asyncio.SubprocessTransport):
    """A child process: what it reads comes in `received`, b"" at the end, and wakes who waits for it."""

    def __init__(
        self, world: Processes, pid: int, command: Sequence[str], protocol: asyncio.SubprocessProtocol
    ) -> None:
        super().__init__()
        self.command = command
        self.holds_bytes = 0  # of the memory of models
        self.received = bytearray()
        self.is_at_end = False
        self.on_receive: list[Callable[[], None]] = []
        self.on_kill: Callable[[], object] = lambda: None
        owner = LIFE.get()
        assert owner is not None, "the service starts processes"
        self.owner = owner
        owner.on_end.append(lambda: self.deliver_in(b""))
        self._world, self._pid, self._protocol = world, pid, protocol
        self._stdin = _Pipe(self)
        self._outputs = {1: asyncio.ReadTransport(), 2: asyncio.ReadTransport()}
        self._returncode: int | None = None
        self._is_over = False
        self._exited: list[asyncio.Future[int]] = []
        self._in_at_s = self._out_at_s = 0.0
        protocol.connection_made(self)

    # What asyncio asks

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._returncode

    def get_pipe_transport(self, fd: int) -> Any:
        return self._stdin if fd == 0 else self._outputs[fd]

    def kill(self) -> None:
        self.die(-signal.SIGKILL)

    def close(self) -> None:
        self._stdin.close()

    def is_closing(self) -> bool:
        return self._returncode is not None

    async def _wait(self) -> int:
        if self._returncode is None:
            self._exited.append(asyncio.get_running_loop().create_future())
            return await self._exited[-1]
        return self._returncode

    # What the world does

    @property
    def is_over(self) -> bool:
        """Whether it has ended, also where that is not known to the service yet."""
        return self._is_over

    def deliver_in(self, data: bytes) -> None:
        """Deliver what the service wrote, in order; b"" is the end, as after the death of the service."""
        self._in_at_s = self._later(self._in_at_s, lambda: self._receive(data), Context())

    def write(self, data: bytes, fd: int = 1) -> None:
        """Send what the process writes, in order and in pieces."""
        while data and not self._is_over:
            n_bytes = len(data) if self._world.clock.chance.random() < 0.9 else self._world.clock.chance.randrange(1, 9)
            piece, data = data[:n_bytes], data[n_bytes:]
            self._deliver_out(lambda piece=piece: self._protocol.pipe_data_received(fd, piece))

    def die(self, status: int) -> None:
        """End the process now. What it wrote before is still delivered, then the ends of its pipes."""
        if self._is_over:
            return
        self._is_over = True
        self.holds_bytes = 0
        self.on_kill()
        for fd in (1, 2):
            self._deliver_out(lambda fd=fd: self._protocol.pipe_connection_lost(fd, None))
        self._later(0.0, lambda: self._exit(status), self.owner.context())

    async def read_line(self) -> bytes:
        """Return the next line of what was received, b"" at the end."""
        while b"\n" not in self.received and not self.is_at_end:
            event = asyncio.Event()
            self.on_receive.append(event.set)
            await event.wait()
            self.on_receive.remove(event.set)
        line, separator, rest = bytes(self.received).partition(b"\n")
        self.received = bytearray(rest)
        return line + separator

    def _receive(self, data: bytes) -> None:
        self.received += data
        self.is_at_end = self.is_at_end or not data
        for wake in list(self.on_receive):
            wake()

    def _exit(self, status: int) -> None:
        self._returncode = status
        self._protocol.process_exited()
        for each in self._exited:
            if not each.cancelled():
                each.set_result(status)

    def _deliver_out(self, deliver: Callable[[], None]) -> None:
        self._out_at_s = self._later(self._out_at_s, deliver, self.owner.context())

    def _later(self, not_before_s: float, deliver: Callable[[], None], context: Context) -> float:
        clock, loop = self._world.clock, self._world.loop  # a thread of the process may be what writes
        at_s = max(not_before_s + 1e-7, clock.now_s + clock.delay_s(0.0005))  # timers of one moment have no order
        loop.call_at(at_s, deliver, context=context)
        return at_s


class Processes:
    """The child processes of a world. `model_bytes` says what a model takes of the memory, from the moment when its
    engine is told to load it; `most_bytes` is the most that the engines of one service held at once. Steps of an engine
    take about `step_s`, loading `load_s`."""

    def __init__(self, clock: Clock, model_bytes: Callable[[str], int], step_s: float, load_s: float) -> None:
        self.clock = clock
        self.loop = SimulatedLoop(clock, self._start)
        self.most_bytes = 0
        self.running: dict[int, Process] = {}
        self.lives: dict[int, Life] = {}  # by their numbers
        self.network = Network(clock)
        self.errors: list[str] = []  # of the programs themselves
        self._model_bytes, self._step_s, self._load_s = model_bytes, step_s, load_s
        self._n_started = 0
        self._programs: set[asyncio.Task[None]] = set()

    def new_life(self, name: str) -> Life:
        """Return a process that uses the disk: it has just begun, and does nothing yet."""
        life = Life(self.loop, self._new_pid(), name)
        self.lives[life.pid] = life
        return life

    @property
    def engines(self) -> list[Process]:
        return [each for each in self.running.values() if "app.engine.worker" in each.command and not each.is_over]

    def _new_pid(self) -> int:
        self._n_started += 1
        return _FIRST_PID + self._n_started

    def _start(
        self, command: tuple[str, ...], protocol: asyncio.SubprocessProtocol, environment: Mapping[str, str]
    ) -> Process:
        process = Process(self, self._new_pid(), command, protocol)
        self.running[process.get_pid()] = process
        if "app.engine.worker" in command:
            _Engine(self, process)
            return process
        if "app.engine.chat_template.render" in command:
            program = self._renderer(process)
        elif "batch" in command:
            program = self._batch(process, f"http://127.0.0.1:{environment['LOCALLLM_PORT']}")
        else:
            program = self._job(process)
        task = self.loop.outside(self._until_end(program, process))
        self._programs.add(task)
        task.add_done_callback(self._programs.discard)
        process.on_kill = task.cancel
        return process

    def kill_group(self, pid: int, _signal: int) -> None:
        """Take the place of `os.killpg`."""
        self.running[pid].kill()

    def load(self, process: Process, path: str) -> None:
        """Count the memory of a model from now on."""
        process.holds_bytes = self._model_bytes(path)
        beside = (each.holds_bytes for each in self.running.values() if each.owner is process.owner)
        self.most_bytes = max(self.most_bytes, sum(beside))

    def loader(self, turns: Turns, process: Process) -> Callable[[Load, LoadListener], LoadedEngine]:
        """Return a loader of fake models that takes its time."""

        def new_backend(n_ctx: int, n_cells: int, n_sequences: int) -> FakeBackend:
            backend = FakeBackend(n_ctx, n_cells, n_sequences, step_s=self._step_s)
            backend._interrupted = SimulatedEvent(turns)  # type: ignore[assignment]
            return backend

        def load(message: Load, listener: LoadListener) -> LoadedEngine:
            self.load(process, message.model_path)
            for part in range(4):
                if not listener.on_progress(part / 4):
                    raise EngineError("Loading was stopped.", "Load the model again.")
                turns.wait(lambda: False, self.clock.delay_s(self._load_s / 4), [])
            n_ctx = message.config.n_ctx or 8192
            return LoadedEngine(
                new_backend(n_ctx, 2 * n_ctx, message.config.n_sequences),
                FakeEmbedder,
                StepCost(),
                None,
                lambda _work, _ratios: None,
                ExitStack(),
                new_batch_backend=lambda: new_backend(n_ctx, 4 * n_ctx, _N_BATCH_ANSWERS),
                n_batch_answers=_N_BATCH_ANSWERS,
            )

        return load

    async def _until_end(self, program: Coroutine[Any, Any, int], process: Process) -> None:
        process.die(await program)

    async def _renderer(self, process: Process) -> int:
        while line := await process.read_line():
            await asyncio.sleep(self.clock.delay_s(0.002))
            job = json.loads(line)
            process.write(json.dumps({"text": render(job["template"], job["variables"])}).encode() + b"\n")
        return 0

    async def _job(self, process: Process) -> int:
        """Report steps, and be done or fail; Ctrl-C and the end of the service end it."""
        chance = self.clock.chance
        n_steps, fails = chance.randrange(1, 12), chance.random() < 0.2
        for number in range(n_steps):
            step = {"event": "step", "title": "Working", "n_done": number, "n_total": n_steps, "unit": "steps"}
            process.write(json.dumps({**step, "remaining_s": None, "per_s": None}).encode() + b"\n")
            await asyncio.sleep(self.clock.delay_s(1.0))
            if process.received or process.is_at_end:
                return 130
        if fails:
            error = {"kind": "EngineError", "cause": "It failed.", "remedy": "Try again.", "details": {}}
            process.write(json.dumps({"event": "failed", "error": error}).encode() + b"\n")
            return 1
        process.write(b'{"answer": 42}\n')
        return 0

    async def _batch(self, process: Process, url: str) -> int:
        """Answer a batch as `localllm batch` does; Ctrl-C ends it, and so does the end of the service, at once."""
        life = self.new_life("batch")
        if self.clock.chance.random() < 0.15:
            life.dies_at = self.clock.chance.randrange(1, 40)
        words = process.command
        source = Path(words[-1])
        output = Path(next(word for word in words if word.startswith("--output=")).removeprefix("--output="))
        answering = life.task(_answer_batch(process, self.network, url, source, output))
        life.on_end.append(lambda: answering.done() or process.die(-signal.SIGKILL))
        listening = self.loop.outside(_until_line(process))
        try:
            await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and process.received:
                answering.cancel()
                await asyncio.wait({answering})
                return 130
            if not answering.done():
                return 1
            return answering.result()
        finally:
            listening.cancel()
            if answering.done():
                life.end()
            else:
                life.die()


async def _until_line(process: Process) -> None:
    """Wait for a line from the service, or its end."""
    while not (process.received or process.is_at_end):
        event = asyncio.Event()
        process.on_receive.append(event.set)
        await event.wait()
        process.on_receive.remove(event.set)


async def _answer_batch(process: Process, network: Network, url: str, source: Path, output: Path) -> int:
    def opened() -> tuple[list[BatchRequest], OutputFile]:
        with source.open("rb") as file:
            requests = read_requests(str(source), file)
        return requests, OutputFile(output, requests, patience_s=60.0)

    def tell(data: Mapping[str, Any]) -> None:
        process.write(json.dumps(data).encode() + b"\n")

    try:
        requests, answers = await asyncio.to_thread(opened)
        try:
            async with ServiceClient(url, transport=network) as client:

                async def ask(request: BatchRequest) -> tuple[int, Any]:
                    return await client.answer(request.url, request.body, {PRIORITY_HEADER: BATCH})

                def show(tally: Tally) -> None:
                    tell({"answered": tally.n_answered, "failed": tally.n_failed, "total": len(requests)})

                show(await run_batch(requests, ask, answers, 3, show))
        finally:
            answers.close()
    except UserError as error:
        tell({"event": "failed", "error": asdict(ErrorInfo.of(error))})
        return 1
    return 0


class _Engine:
    """An engine worker: the product's own, with both its threads."""

    def __init__(self, world: Processes, process: Process) -> None:
        self._process, self._world = process, world
        self._turns = Turns(world.loop)
        self._waiting: list[Callable[[], None]] = []
        process.on_receive.append(self._wake)
        process.on_kill = self._turns.kill
        inside = SimpleNamespace(SimpleQueue=lambda: SimulatedQueue(self._turns), Empty=queue.Empty)
        worker.queue = inside  # type: ignore[attr-defined, assignment]
        self._worker = Worker(self._read, self._write, world.loader(self._turns, process))
        worker.queue = queue  # type: ignore[attr-defined]
        self._turns.begin(self._worker.read_messages, self._on_end)
        self._turns.begin(self._worker.run_engine, self._on_end_of_engine)

    def _wake(self) -> None:
        for wake in list(self._waiting):
            wake()

    def _read(self, n_bytes: int) -> bytes:
        process = self._process
        self._turns.wait(lambda: len(process.received) >= n_bytes or process.is_at_end, None, self._waiting)
        data = bytes(process.received[:n_bytes])
        del process.received[:n_bytes]
        return data

    def _write(self, data: bytes) -> None:
        self._process.write(data)

    def _on_end(self, error: BaseException | None) -> None:
        """Note what the thread that reads ended with; the process ends with the other one."""
        if error is not None and not isinstance(error, KilledError):
            self._world.errors.append(f"the reader of an engine ended by {error!r}")
            self._process.die(1)

    def _on_end_of_engine(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, KilledError):
            self._world.errors.append(f"an engine ended by {error!r}")
        self._process.die(0 if error is None else 1)
