"""An editor for tests: the package's own client over queues, which records what it is told and answers by a script."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp import connect_to_agent, text_block
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeclineElicitationResponse,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    FileSystemCapabilities,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)

from app.acp.agent import Agent, AgentOptions
from app.acp.modes import mode_of
from app.chat.conversation import ChatSettings
from app.chat.repository import SqliteChatRepository
from app.chat.tool_switches import RequestedTools
from app.connection import ServiceConnection
from app.settings.settings import Settings
from tests.app.client.scripted_client import ScriptedClient

__all__ = ["FakeEditor", "asks", "opened_editor"]

_CANCELLED, _FAILS = "cancelled", "fails"


class FakeEditor:
    """The client's methods. Permission requests are answered by the ids in `choices`, then with "once"; a function is
    called, and "cancelled" is no choice. `files` are its buffers by path, with unsaved text; it has the capability to
    read and write them where it `has_files`. What it writes goes through `format`, as in an editor with a formatter.
    Where it `has_forms`, they are filled with `content`. Where it `has_terminals`, commands run as real processes, in
    `terminals` by their ids until they are released."""

    def __init__(
        self,
        choices: Sequence[str | Callable[[], Any]] = (),
        *,
        has_files: bool = False,
        has_forms: bool = False,
        has_terminals: bool = False,
    ) -> None:
        self.updates: list[tuple[str, Any]] = []
        self.asked: list[Any] = []
        self.files: dict[str, str] = {}
        self.written: list[tuple[str, str]] = []
        self.refuses = False  # to write
        self.format: Callable[[str], str] = lambda text: text
        self.capabilities = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=has_files, write_text_file=has_files),
            elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()) if has_forms else None,
            terminal=has_terminals,
        )
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self.opened: list[dict[str, Any]] = []  # what each terminal was asked for
        self.forms: list[Any] = []
        self.content: dict[str, Any] | None = None  # what is filled into a form
        self.news = asyncio.Event()
        self._choices = list(choices)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))
        self.news.set()

    async def request_permission(self, options: Any, session_id: str, tool_call: Any, **_: Any) -> Any:
        self.asked.append((tool_call, options))
        self.news.set()
        choice = self._choices.pop(0) if self._choices else "once"
        if callable(choice):
            choice = await choice()
        if choice == _CANCELLED:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        if choice == _FAILS:
            raise RequestError.internal_error()
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=choice))

    async def read_text_file(self, path: str, **_: Any) -> Any:
        if path in self.files:
            return ReadTextFileResponse(content=self.files[path])
        if not Path(path).exists():  # noqa: ASYNC240 - a small file
            raise RequestError.resource_not_found(path)
        return ReadTextFileResponse(content=Path(path).read_text(encoding="utf-8"))  # noqa: ASYNC240

    async def write_text_file(self, content: str, path: str, **_: Any) -> Any:
        if self.refuses:
            raise RequestError.internal_error({"details": "Permission denied"})
        self.written.append((path, content))
        self.files.pop(path, None)
        Path(path).write_text(self.format(content), encoding="utf-8")  # noqa: ASYNC240
        return WriteTextFileResponse()

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.forms.append((message, mode))
        if self.content is None:
            return DeclineElicitationResponse(action="decline")
        return AcceptElicitationResponse(action="accept", content=self.content)

    async def create_terminal(self, session_id: str, command: str, **more: Any) -> Any:
        del session_id
        if self.refuses:
            raise RequestError.internal_error({"details": "Permission denied"})
        self.opened.append({"command": command, **more})
        self.terminals[terminal_id := f"term-{len(self.opened)}"] = await asyncio.create_subprocess_exec(
            command,
            *more["args"],
            cwd=more["cwd"],
            env={**os.environ, **{each.name: each.value for each in more["env"]}},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return CreateTerminalResponse(terminal_id=terminal_id)

    async def wait_for_terminal_exit(self, terminal_id: str, **_: Any) -> Any:
        status = await self.terminals[terminal_id].wait()
        if status < 0:
            return WaitForTerminalExitResponse(signal=signal.Signals(-status).name)
        return WaitForTerminalExitResponse(exit_code=status)

    async def terminal_output(self, terminal_id: str, **_: Any) -> Any:
        stdout = self.terminals[terminal_id].stdout
        assert stdout is not None
        return TerminalOutputResponse(output=(await stdout.read()).decode(), truncated=False)

    async def kill_terminal(self, terminal_id: str, **_: Any) -> None:
        self.terminals[terminal_id].kill()

    async def release_terminal(self, terminal_id: str, **_: Any) -> None:
        process = self.terminals.pop(terminal_id)
        if process.returncode is None:
            process.kill()
        await process.wait()
        self.news.set()

    def on_connect(self, _: Any) -> None:
        """Nothing to do: the test has the connection."""

    def of_kind(self, kind: str) -> list[Any]:
        """Return the updates called `kind`, as "tool_call"."""
        return [update for _, update in self.updates if update.session_update == kind]

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(update.content.text for update in self.of_kind("agent_message_chunk"))

    @property
    def thoughts(self) -> str:
        return "".join(update.content.text for update in self.of_kind("agent_thought_chunk"))

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until `is_so`, which something that the editor is told or asked brings about."""
        while not is_so():
            await self.news.wait()
            self.news.clear()


class _Queues:
    """One end of a pair of queues, as the package's `Transport`."""

    def __init__(self, inbox: asyncio.Queue[Any], outbox: asyncio.Queue[Any]) -> None:
        self._inbox, self._outbox = inbox, outbox

    async def send(self, message: dict[str, Any]) -> None:
        await self._outbox.put(message)

    async def receive(self) -> dict[str, Any] | None:
        message: dict[str, Any] | None = await self._inbox.get()
        return message

    async def close(self) -> None:
        await self._outbox.put(None)


@asynccontextmanager
async def opened_editor(
    client: ScriptedClient,
    editor: FakeEditor,
    data_dir: Path,
    *,
    mode: str = "ask",
    tools: Sequence[str] = ("files",),
    has_default_tools: bool = False,
) -> AsyncIterator[Any]:
    """Yield the connection of `editor` to an agent whose model is scripted and whose chats are in `data_dir`. Leaving
    it is as if the editor closed its end."""
    settings = Settings(data_dir=data_dir, cache_dir=data_dir / "cache", model="guide")
    options = AgentOptions(
        settings=settings,
        answering=ChatSettings(),
        tools=RequestedTools(enabled=tuple(tools)),
        mode=mode_of(mode),
        has_default_tools=has_default_tools,
    )
    there, back = asyncio.Queue[Any](), asyncio.Queue[Any]()
    stored = SqliteChatRepository(data_dir, has_drafts=False)
    async with stored as repository, ServiceConnection(client.opened, "guide") as service:
        agent = Agent(options, service, repository)
        wire = Connection(agent.handle, _Queues(there, back), listening=False)  # type: ignore[arg-type]
        agent.editor.connect(wire)
        listening = asyncio.create_task(wire.main_loop())
        connection = connect_to_agent(editor, _Queues(back, there), use_unstable_protocol=True)  # type: ignore[arg-type]
        try:
            await connection.initialize(protocol_version=1, client_capabilities=editor.capabilities)
            yield connection
        finally:
            await there.put(None)
            await listening
            await agent.close()
            await wire.close()
            await connection.close()


def asks(text: str) -> list[Any]:
    """Return a prompt of one text."""
    return [text_block(text)]
