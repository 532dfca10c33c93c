"""The editor at the other end: what it is told, and what it is asked for: permissions, and files as its buffers have
them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import CLIENT_METHODS
from acp.schema import (
    ClientCapabilities,
    CreateFormSessionElicitationRequest,
    FileSystemCapabilities,
    ReadTextFileRequest,
    ReadTextFileResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    WriteTextFileRequest,
    WriteTextFileResponse,
)
from pydantic import BaseModel, ValidationError

from app.tools.file_access import MAX_FILE_BYTES
from quantizer.system.errors import StorageError

_FILE_TIMEOUT_S = 30.0  # of an editor that opens a file, which may ask a remote machine
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
        return await self._asked("session_request_permission", request, RequestPermissionResponse)

    async def fill(self, request: CreateFormSessionElicitationRequest) -> Mapping[str, Any] | None:
        """Return what the person filled into a form, None where they did not, or the editor has none."""
        elicitation = self.capabilities.elicitation
        if elicitation is None or elicitation.form is None:
            return None
        try:
            answer = await self._asked("elicitation_create", request, _FormAnswer)
        except EditorGoneError:
            return None
        return answer.content or {} if answer is not None and answer.action == "accept" else None

    async def read_text_file(self, session_id: str, path: Path) -> str | None:
        """Return a file as the editor has it, None where it does not give it."""
        request = ReadTextFileRequest(session_id=session_id, path=str(path))
        try:
            async with asyncio.timeout(_FILE_TIMEOUT_S):
                answer = await self._asked("fs_read_text_file", request, ReadTextFileResponse)
        except (TimeoutError, EditorGoneError):
            return None
        return answer.content if answer is not None and len(answer.content) <= MAX_FILE_BYTES else None

    async def write_text_file(self, session_id: str, path: Path, text: str) -> bool:
        """Write a file in the editor; return whether it did."""
        request = WriteTextFileRequest(session_id=session_id, path=str(path), content=text)
        try:
            async with asyncio.timeout(_FILE_TIMEOUT_S):
                return await self._asked("fs_write_text_file", request, WriteTextFileResponse) is not None
        except (TimeoutError, EditorGoneError):
            return False

    async def _asked(self, method: str, request: BaseModel, kind: type[_Answer]) -> _Answer | None:
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


def _dumped(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
