"""Running a batch: several requests at once, each answer appended to the output file as it comes.

Owns the output file, from which an interrupted batch goes on: a line is an answer, in OpenAI's form, and what is on a
line is never asked again. Knows no server: it asks through a function.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeAlias

from app.batch.requests import BatchRequest
from quantizer.system.errors import UsageError
from quantizer.system.files import (
    PRIVATE_FILE,
    Lock,
    explained,
    is_folder,
    open_private,
    remove_lock,
    sync_folder,
    try_lock,
    write_atomically,
)

SYNC_INTERVAL_S = 1.0
_ATTEMPTS = 3
_PAUSE_S = 1.0  # before the second attempt, then twice that
_TRANSIENT = frozenset({429, 500, 502, 503, 504})  # a worker that died is there again; a busy server has time later
_GO_ON = "Free some space; the same command then goes on."

# Returns the status and the JSON of an answer. Raises UserError where the server is gone.
Ask: TypeAlias = Callable[[BatchRequest], Awaitable[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many lines have an answer in the output, how many of these are errors, and the tokens of this run."""

    n_answered: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.n_answered + other.n_answered,
            self.n_failed + other.n_failed,
            self.n_prompt_tokens + other.n_prompt_tokens,
            self.n_output_tokens + other.n_output_tokens,
        )


def result_line(request: BatchRequest, status: int, answer: Any) -> tuple[dict[str, Any], Tally]:
    """Return the line of an answer, and its share of the tally. An error is in `error`, and whole in the response."""
    body = answer if isinstance(answer, dict) else {}
    error = None
    if status >= 400:
        said = body.get("error")
        said = said if isinstance(said, dict) else {"message": said or f"The server answered {status}."}
        error = {"code": str(said.get("code") or said.get("type") or status), "message": str(said.get("message"))}
    response = {"status_code": status, "request_id": str(body.get("id") or request.request_id), "body": body}
    line = {"id": request.request_id, "custom_id": request.custom_id, "response": response, "error": error}
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    n_prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    n_output = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return line, Tally(1, int(error is not None), _count(n_prompt), _count(n_output))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class OutputFile:
    """The output of `requests` at `path`, locked as long as it is open. `done` has the custom ids that it had an answer
    for, `tally` counts those that it has. `retry_failed` removes the errors in it, so that their requests are asked
    again.

    A line that a kill or a power failure cut off is removed. Raises UsageError for a file that has other lines than
    answers to these requests, or that another process still writes after `patience_s`, StorageError where the disk
    fails."""

    def __init__(
        self, path: Path, requests: Iterable[BatchRequest], *, retry_failed: bool = False, patience_s: float = 0.0
    ) -> None:
        self.path = path
        self.done: set[str] = set()
        self.tally = Tally()
        if not is_folder(path.parent):
            raise UsageError(f"There is no folder {path.parent}.", "Choose another file with -o.")
        with explained(f"{path} cannot be written", "Choose another file with -o."):
            lock = try_lock(path.with_name(f".{path.name}.lock"), patience_s)
            if lock is None:
                raise UsageError(f"Another localllm writes {path}.", "Wait until it has ended, or choose another -o.")
            self._lock: Lock = lock
            try:
                self._file = self._opened({request.custom_id: request for request in requests}, retry_failed)
            except BaseException:
                remove_lock(lock)
                raise
        self._synced_s = time.monotonic()

    def _opened(self, requests: Mapping[str, BatchRequest], retry_failed: bool) -> BinaryIO:
        with open_private(self.path) as file:
            file.seek(0)
            n_bytes, dropped = 0, set[int]()
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                n_bytes += len(line)
                custom_id, is_failed = self._read(number, line, requests)
                if is_failed and retry_failed:
                    dropped.add(number)
                    continue
                self.done.add(custom_id)
                self.tally += Tally(1, int(is_failed))
            file.truncate(n_bytes)
            if dropped:
                file.seek(0)
                kept = (line for number, line in enumerate(file, 1) if number not in dropped)
                write_atomically(self.path, kept, sync=True, mode=PRIVATE_FILE)
        opened = open_private(self.path)
        sync_folder(self.path.parent)
        return opened

    def _read(self, number: int, line: bytes, requests: Mapping[str, BatchRequest]) -> tuple[str, bool]:
        """Return which request a line answers, and whether by an error."""
        try:
            fields = json.loads(line)
            request = requests[fields["custom_id"]]
            is_answer, is_failed = fields["id"] == request.request_id, fields["error"] is not None
        except (ValueError, RecursionError, LookupError, TypeError):
            is_answer = False
        if not is_answer or request.custom_id in self.done:
            cause = f"Line {number} of {self.path} is not an answer to this batch."
            raise UsageError(cause, "Choose another -o, or remove that file to begin anew.")
        return request.custom_id, is_failed

    async def append(self, line: Mapping[str, Any], share: Tally) -> None:
        """Add a line, whose `share` of the tally counts from then on, even if what follows is interrupted; at most a
        second later it survives a power failure. Raises StorageError."""
        data = memoryview(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        )
        with explained(f"{self.path} cannot be written", _GO_ON):
            while data:  # past Python's buffer: a kill leaves a whole line, or one that the next run cuts off
                data = data[os.write(self._file.fileno(), data) :]
            self.tally += share
            if time.monotonic() - self._synced_s >= SYNC_INTERVAL_S:
                self._synced_s = time.monotonic()
                await asyncio.to_thread(os.fsync, self._file.fileno())

    def close(self) -> None:
        """Write all to the disk; a file without a line is removed. Raises StorageError."""
        try:
            with explained(f"{self.path} cannot be written", _GO_ON):
                os.fsync(self._file.fileno())
                if not os.fstat(self._file.fileno()).st_size:
                    self.path.unlink(missing_ok=True)
        finally:
            self._file.close()
            remove_lock(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


async def run_batch(
    requests: Sequence[BatchRequest],
    ask: Ask,
    output: OutputFile,
    n_at_once: int,
    on_answer: Callable[[Tally], object] = lambda _: None,
) -> Tally:
    """Answer those of `requests` that `output` has no answer for, in order and `n_at_once`, and return the tally of
    all, with the tokens of this run. `on_answer` gets it after each line. Raises StorageError, and what `ask`
    raises."""
    waiting = iter([request for request in requests if request.custom_id not in output.done])

    async def work() -> None:
        for request in waiting:
            await output.append(*result_line(request, *await _answer(ask, request)))
            on_answer(output.tally)

    workers = [asyncio.create_task(work()) for _ in range(n_at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return output.tally


async def _answer(ask: Ask, request: BatchRequest) -> tuple[int, Any]:
    for attempt in range(1, _ATTEMPTS):
        status, answer = await ask(request)
        if status not in _TRANSIENT:
            return status, answer
        await asyncio.sleep(_PAUSE_S * attempt)
    return await ask(request)
