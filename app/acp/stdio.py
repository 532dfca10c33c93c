"""JSON-RPC messages on stdin and stdout, a line each: what the editor sends, bounded, and what goes back.

A line that is no message is answered with an error, and the next one is read. The package's own streams hold a line of
any length, end at `[]`, and take pipes only.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE_BYTES = 48 << 20  # a picture or a sound of 32 MiB, in base64
_PIECE_BYTES = 1 << 16
_HEAD_BYTES = 4096  # of a message that is too long: its id is looked for there
_N_WAITING = 16  # messages; then the editor waits before it can send more
_CLOSE_TIMEOUT_S = 2.0
_PARSE_ERROR, _INVALID_REQUEST = -32700, -32600
# As clients write it: the id before the parameters.
_ID = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"]*"\s*,\s*)*"id"\s*:\s*("[^"\\]{1,200}"|-?[0-9]{1,15})')


@dataclass(frozen=True, slots=True)
class _LongLine:
    """The beginning of a line that was too long to be kept."""

    head: bytes


class _RefusedError(Exception):
    """Why a line is no message; `request_id` is that of the request, None where it has none that can be read."""

    def __init__(self, code: int, text: str, request_id: int | str | None = None) -> None:
        super().__init__(text)
        self.answer = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


class StdioTransport:
    """Implements the package's `Transport` on two descriptors, each used by a thread of its own. `send` raises nothing:
    an editor that is gone ends what `receive` returns."""

    def __init__(self, stdin: int, stdout: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[bytes | _LongLine | None] = asyncio.Queue()
        self._may_wait = threading.Semaphore(_N_WAITING)
        self._sent: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._max_message_bytes = max_message_bytes
        # Daemons: an editor that neither writes nor reads must not keep the process.
        threading.Thread(target=self._read, args=(stdin,), name="acp-reader", daemon=True).start()
        self._writer = threading.Thread(target=self._write, args=(stdout,), name="acp-writer", daemon=True)
        self._writer.start()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end. What is no message is answered here."""
        while (line := await self._received.get()) is not None:
            self._may_wait.release()
            try:
                return _message(line, self._max_message_bytes)
            except _RefusedError as refused:
                await self.send(refused.answer)
        return None

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write a message, and return once it is written: a slow editor slows an answer down."""
        done = self._loop.create_future()
        self._sent.put((json.dumps(message, separators=(",", ":")).encode() + b"\n", done))
        await asyncio.shield(done)

    async def close(self) -> None:
        """Write what was sent; an editor that does not read it is not waited for long."""
        self._sent.put(None)
        await asyncio.to_thread(self._writer.join, _CLOSE_TIMEOUT_S)

    def _read(self, stdin: int) -> None:
        with suppress(RuntimeError):  # the loop has ended
            for line in _lines(stdin, self._max_message_bytes):
                self._may_wait.acquire()
                self._loop.call_soon_threadsafe(self._received.put_nowait, line)
            self._loop.call_soon_threadsafe(self._received.put_nowait, None)

    def _write(self, stdout: int) -> None:
        is_broken = False
        with suppress(RuntimeError):  # the loop has ended
            while (item := self._sent.get()) is not None:
                left, done = memoryview(item[0]), item[1]
                while left and not is_broken:
                    try:
                        left = left[os.write(stdout, left) :]
                    except OSError:
                        is_broken = True
                        self._loop.call_soon_threadsafe(self._end_now)
                self._loop.call_soon_threadsafe(_finish, done)

    def _end_now(self) -> None:
        """Let `receive` return None: nobody reads what a message that waits would be answered."""
        while not self._received.empty():
            self._received.get_nowait()
        self._received.put_nowait(None)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():  # its task may be cancelled
        done.set_result(None)


def _lines(descriptor: int, max_bytes: int) -> Iterator[bytes | _LongLine]:
    """Yield the lines that are read, without blank ones. A system that refuses to read more ends them."""
    begun, is_too_long = bytearray(), False
    while True:
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except OSError:
            piece = b""
        *ended, rest = (piece or b"\n").split(b"\n")
        for part in ended:
            begun += part
            if is_too_long or len(begun) > max_bytes:
                yield _LongLine(bytes(begun[:_HEAD_BYTES]))
            elif begun.strip():
                yield bytes(begun)
            begun, is_too_long = bytearray(), False
        if not piece:
            return
        begun += rest
        if len(begun) > max_bytes:
            is_too_long = True
        if is_too_long:
            del begun[_HEAD_BYTES:]


def _message(line: bytes | _LongLine, max_bytes: int) -> dict[str, Any]:
    """Return the message in a line. Raises _RefusedError for one that the package could not route or answer."""
    if isinstance(line, _LongLine):
        found = _ID.match(line.head)
        text = f"A message has more than {max_bytes >> 20} MiB. Send less at once, or the path of a file."
        raise _RefusedError(_INVALID_REQUEST, text, json.loads(found[1]) if found else None)
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # a UnicodeDecodeError is a ValueError
        raise _RefusedError(_PARSE_ERROR, "A line is not JSON. Send each message as one line.") from None
    if not isinstance(message, dict):
        raise _RefusedError(_INVALID_REQUEST, "A message must be a JSON object; batches are not supported.")
    message_id = message.get("id")
    if isinstance(message_id, bool) or not isinstance(message_id, int | str | None):
        raise _RefusedError(_INVALID_REQUEST, "The id of a message must be a number or a text.")
    method = message.get("method")
    is_response = method is None and ("result" in message or "error" in message)
    if not (is_response or isinstance(method, str)):
        raise _RefusedError(_INVALID_REQUEST, "A message needs a method, a result or an error.", message_id)
    if is_response and not isinstance(message.get("error", {}), dict | None):
        raise _RefusedError(_INVALID_REQUEST, "The error of a response must be an object.", message_id)
    return message
