"""The editor at the other end: what it is told, and what it is asked for: permissions, files as its buffers have them,
and commands in its terminals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import CLIENT_METHODS
from acp.schema import (
    ClientCapabilities,
    CreateFormSessionElicitationRequest,
    CreateTerminalRequest,
    CreateTerminalResponse,
    EnvVariable,
    FileSystemCapabilities,
    KillTerminalRequest,
    KillTerminalResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    ReleaseTerminalRequest,
    ReleaseTerminalResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    TerminalOutputRequest,
    TerminalOutputResponse,
    WaitForTerminalExitRequest,
    WaitForTerminalExitResponse,
    WriteTextFileRequest,
    WriteTextFileResponse,
)
from pydantic import BaseModel, ValidationError

from app.tools.builtin.processes import Ended
from app.tools.file_access import MAX_FILE_BYTES
from app.tools.tool import BoundCommand
from quantizer.figures import format_number
from quantizer.system.errors import EngineError, StorageError

_MAX_OUTPUT_BYTES = 1 << 20  # of a command, its end: more than any model reads
_ANSWER_TIMEOUT_S = 30.0  # of an editor that opens a file, which may ask a remote machine, or a terminal
_Answer = TypeVar("_Answer", bound=BaseModel)


class EditorGoneError(Exception):
    """The editor has closed the connection."""


class Editor:
    """The methods of the client. `capabilities` are those of `initialize`, none before it."""

    def __init__(self) -> None:
        self.capabilities = ClientCapabilities()
        self._connection: Connection | None = None

    def connect(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def files(self) -> FileSystemCapabilities:
        return self.capabilities.fs or FileSystemCapabilities()

    async def update(self, session_id: str, update: BaseModel) -> None:
        """Tell what happens in a session. An editor that is gone is told nothing; the chat is stored all the same."""
        params = {"sessionId": session_id, "update": _dumped(update)}
        try:
            await self._connected.send_notification(CLIENT_METHODS["session_update"], params)
        except ConnectionError:
            return

    async def permission(self, request: RequestPermissionRequest) -> RequestPermissionResponse | None:
        """Return the person's answer, None where the editor failed to ask. Raises EditorGoneError."""
        return await self.asked("session_request_permission", request, RequestPermissionResponse)

    async def fill(self, request: CreateFormSessionElicitationRequest) -> Mapping[str, Any] | None:
        """Return what the person filled into a form, None where they did not, or the editor has none."""
        elicitation = self.capabilities.elicitation
        if elicitation is None or elicitation.form is None:
            return None
        try:
            answer = await self.asked("elicitation_create", request, _FormAnswer)
        except EditorGoneError:
            return None
        return answer.content or {} if answer is not None and answer.action == "accept" else None

    async def read_text_file(self, session_id: str, path: Path) -> str | None:
        """Return a file as the editor has it, None where it does not give it."""
        request = ReadTextFileRequest(session_id=session_id, path=str(path))
        answer = await self.answered("fs_read_text_file", request, ReadTextFileResponse)
        return answer.content if answer is not None and len(answer.content) <= MAX_FILE_BYTES else None

    async def write_text_file(self, session_id: str, path: Path, text: str) -> bool:
        """Write a file in the editor; return whether it did."""
        request = WriteTextFileRequest(session_id=session_id, path=str(path), content=text)
        return await self.answered("fs_write_text_file", request, WriteTextFileResponse) is not None

    async def answered(self, method: str, request: BaseModel, kind: type[_Answer]) -> _Answer | None:
        """Return the answer to a request that asks no person, None where none comes."""
        with suppress(TimeoutError, EditorGoneError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await self.asked(method, request, kind)
        return None

    async def asked(self, method: str, request: BaseModel, kind: type[_Answer]) -> _Answer | None:
        """Return the answer to a request, None for an error and for what is no such answer."""
        try:
            answer = await self._connected.send_request(CLIENT_METHODS[method], _dumped(request))
            return kind.model_validate({} if answer is None else answer)
        except (RequestError, ValidationError):
            return None
        except ConnectionError as error:
            raise EditorGoneError from error

    @property
    def _connected(self) -> Connection:
        assert self._connection is not None, "nothing is told before the editor is connected"
        return self._connection


class _FormAnswer(BaseModel):
    """The package has a class for each action."""

    action: str
    content: dict[str, Any] | None = None


class EditorBuffers:
    """The `OpenBuffers` of one session: files as an editor shows them, as far as it has the capability."""

    def __init__(self, editor: Editor, session_id: str) -> None:
        self._editor = editor
        self._session_id = session_id

    async def read(self, path: Path) -> str | None:
        if not self._editor.files.read_text_file:
            return None
        return await self._editor.read_text_file(self._session_id, path)

    async def write(self, path: Path, text: str) -> bool:
        if not self._editor.files.write_text_file:
            return False
        if not await self._editor.write_text_file(self._session_id, path, text):
            # Its person, or its rules, may have said no: nothing is written behind its back.
            raise StorageError(f"The editor did not write {path.name}.", "Ask the user what they want instead.")
        return True


class EditorTerminal:
    """The `CommandTerminal` of one session. `on_opened` gets the id of each terminal before its command ends, so that
    the editor shows it within the call."""

    def __init__(self, editor: Editor, session_id: str) -> None:
        self.on_opened: Callable[[str], Awaitable[None]] | None = None
        self._editor = editor
        self._session_id = session_id
        self._late: set[asyncio.Task[None]] = set()

    @property
    def is_offered(self) -> bool:
        return bool(self._editor.capabilities.terminal)

    async def run(self, command: BoundCommand, variables: Mapping[str, str], timeout_s: float) -> Ended:
        request = CreateTerminalRequest(
            session_id=self._session_id,
            command=command.program,
            args=list(command.argv[1:]),
            env=[EnvVariable(name=name, value=value) for name, value in variables.items()],
            cwd=command.folder,
            output_byte_limit=_MAX_OUTPUT_BYTES,
        )
        opened = await self._opened(request)
        if opened is None:
            # Its person, or its rules, may have said no: nothing runs behind its back.
            raise EngineError("The editor did not run the command.", "Ask the user what they want instead.")
        place: dict[str, Any] = {"session_id": self._session_id, "terminal_id": opened.terminal_id}
        try:
            if self.on_opened is not None:
                await self.on_opened(opened.terminal_id)
            waiting = WaitForTerminalExitRequest(**place)
            exit_, reason = None, ""
            try:
                async with asyncio.timeout(timeout_s):
                    exit_ = await self._editor.asked("terminal_wait_for_exit", waiting, WaitForTerminalExitResponse)
            except TimeoutError:
                reason = f"it took more than {format_number(timeout_s)} s"
                await self._editor.answered("terminal_kill", KillTerminalRequest(**place), KillTerminalResponse)
            except EditorGoneError:
                raise EngineError("The editor closed while the command ran.", "What it did is not known.") from None
            output = await self._editor.answered(
                "terminal_output", TerminalOutputRequest(**place), TerminalOutputResponse
            )
        finally:  # also where this is cancelled
            await asyncio.shield(self._release(opened.terminal_id))
        if output is None or (exit_ is None and not reason):
            raise EngineError("The editor lost the terminal of the command.", "What it did is not known.")
        cut = "[the editor left out the beginning]\n" if output.truncated else ""
        data = f"{cut}{output.output}".encode("utf-8", "replace")
        status = None if exit_ is None else _status_of(exit_)
        return Ended(data, len(data), status, reason, bool(reason))

    async def _opened(self, request: CreateTerminalRequest) -> CreateTerminalResponse | None:
        """Return the terminal in which a command runs, None where the editor opens none. One that it opens later, or
        once this was cancelled, is released at once: editors may ask their person first."""
        opening = asyncio.create_task(self._editor.asked("terminal_create", request, CreateTerminalResponse))
        opened: CreateTerminalResponse | None = None
        try:
            with suppress(TimeoutError, EditorGoneError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    opened = await asyncio.shield(opening)
        finally:
            if opened is None:
                late = asyncio.create_task(self._release_late(opening))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
        return opened

    async def _release_late(self, opening: asyncio.Task[CreateTerminalResponse | None]) -> None:
        with suppress(EditorGoneError):
            if (opened := await opening) is not None:
                await self._release(opened.terminal_id)

    async def _release(self, terminal_id: str) -> None:
        """Let a terminal go, which ends what still runs in it."""
        request = ReleaseTerminalRequest(session_id=self._session_id, terminal_id=terminal_id)
        await self._editor.answered("terminal_release", request, ReleaseTerminalResponse)


def _status_of(ended: WaitForTerminalExitResponse) -> int:
    """Return an exit status as `Ended` has it: negative for the signal that ended a command."""
    if ended.exit_code is not None:
        return ended.exit_code
    name = (ended.signal or "").upper()
    numbers = {each.name: each.value for each in signal.Signals}
    return -numbers.get(name if name.startswith("SIG") else f"SIG{name}", signal.SIGTERM.value)


def _dumped(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
