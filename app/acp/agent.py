"""The agent: its methods by their names in the protocol, its sessions, and the one connection that they share.

Each request ends with a result or an error whose message has a cause and a remedy. Nothing that an editor sends ends
the process but the end of its input.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeAlias

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, PROTOCOL_VERSION
from acp.schema import (
    AcpMcpServer,
    AgentCapabilities,
    AuthenticateRequest,
    AuthenticateResponse,
    CancelNotification,
    ClientCapabilities,
    CloseSessionRequest,
    CloseSessionResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    HttpMcpServer,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionRequest,
    LoadSessionResponse,
    McpCapabilities,
    McpServerStdio,
    NewSessionRequest,
    NewSessionResponse,
    PromptCapabilities,
    PromptRequest,
    PromptResponse,
    ResumeSessionRequest,
    ResumeSessionResponse,
    SessionAdditionalDirectoriesCapabilities,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionResponse,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SetSessionModeResponse,
    SseMcpServer,
)
from pydantic import BaseModel, ValidationError

from app import __version__
from app.acp.editor import Editor, EditorBuffers, EditorTerminal
from app.acp.modes import Mode, mode_state
from app.acp.session import EditorSession
from app.acp.stdio import StdioTransport
from app.chat.branches import Conversation
from app.chat.conversation import Chat, ChatSettings
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.chat.store.tables import UnknownChatError
from app.chat.tool_switches import RequestedTools
from app.common.event_log import log_event
from app.common.extras import MCP
from app.common.terminal import printable_line
from app.connection import ServiceConnection, find_model, forget_chat, is_localllm, local_models, local_service
from app.settings.settings import Settings
from app.tools.approval import ToolSettings
from app.tools.lazy import LazyTools
from app.tools.mcp.config import ServerConfig, config_of
from app.tools.mcp.listing import server_names
from quantizer.system.errors import UsageError, UserError

_N_LISTED = 50
_FINISH_TIMEOUT_S = 2.0  # the service may be starting
_N_TOLD_FAULTS = 3  # of a request that is not valid
_INVALID_PARAMS, _INTERNAL_ERROR, _NOT_FOUND = -32602, -32603, -32002
_SESSION_OF_CHAT = re.compile(r"chat-([0-9]{1,18})-[0-9]{1,18}")

_Server: TypeAlias = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio


class UnknownSessionError(UserError):
    """A session that is not open here, and that no stored chat has."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id[:80]!r}.", "Start a new one, or list them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What the command line says: the settings, and of new sessions how to answer, the tools, and the mode. Tools by
    default (`has_default_tools`) are offered where the model has a place for them."""

    settings: Settings
    answering: ChatSettings
    tools: RequestedTools
    mode: Mode
    has_default_tools: bool = False


class Agent:
    """Answers the protocol's methods. `handle` is what the package's connection calls with each request."""

    def __init__(self, options: AgentOptions, connection: ServiceConnection, repository: SqliteChatRepository) -> None:
        self.editor = Editor()
        self._options = options
        self._connection = connection
        self._repository = repository
        self._sessions: dict[str, EditorSession] = {}
        self._models = SharedModels(connection, self._sessions)
        self._background: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[Any]] = set()

    async def handle(self, method: str, params: Any, is_notification: bool) -> BaseModel | None:
        """Return the result of a request. Raises RequestError, whose message says what to do."""
        row = _METHODS.get(method)
        if row is None or row.is_notification != is_notification:
            raise RequestError.method_not_found(printable_line(method[:80]))
        task = asyncio.current_task()
        if task is not None and method != AGENT_METHODS["session_prompt"]:
            self._answering.add(task)  # until its answer is written
            task.add_done_callback(self._answering.discard)
        try:
            return await row.call(self, _validated(row.kind, params))
        except UnknownSessionError as error:
            raise RequestError(_NOT_FOUND, str(error)) from error
        except UsageError as error:
            raise RequestError(_INVALID_PARAMS, str(error)) from error
        except UserError as error:
            raise RequestError(_INTERNAL_ERROR, str(error)) from error
        except RequestError:
            raise
        except Exception as error:
            # Types and positions, as in a crash report: a message may quote the chat.
            place = extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            log_event("acp", f"{method} failed: {fault}")
            raise RequestError(_INTERNAL_ERROR, f"localllm has a fault here: {fault}. Please report it.") from None

    async def finish(self) -> None:
        """Answer what was asked before the input ended, but for prompts, which `close` stops."""
        await asyncio.sleep(0)  # the last one has not begun
        if self._answering:
            await asyncio.wait(self._answering, timeout=_FINISH_TIMEOUT_S)

    async def close(self) -> None:
        """Stop all sessions, and store what came."""
        for task in self._background:
            task.cancel()
        closed = await asyncio.gather(*(each.close() for each in self._sessions.values()), return_exceptions=True)
        for failure in filter(None, closed):
            raise failure

    # Methods

    async def initialize(self, request: InitializeRequest) -> InitializeResponse:
        given = request.client_capabilities
        if given is not None:
            # In place of what is malformed the package puts a dictionary of defaults, whatever the type says.
            dumped = given if isinstance(given, dict) else given.model_dump(by_alias=True, warnings=False)
            self.editor.capabilities = ClientCapabilities.model_validate(dumped)
        self._connection.connect()  # while the editor draws
        has_mcp = MCP.is_installed
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="localllm", title="localllm", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                # What a model cannot see or hear is refused with a sentence: which one answers is not known yet.
                prompt_capabilities=PromptCapabilities(image=True, audio=True, embedded_context=True),
                mcp_capabilities=McpCapabilities(http=has_mcp, sse=has_mcp),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                    delete=SessionDeleteCapabilities(),
                    additional_directories=SessionAdditionalDirectoriesCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def authenticate(self, _: AuthenticateRequest) -> AuthenticateResponse:
        """Do nothing: whoever starts this process is its user."""
        return AuthenticateResponse()

    async def new_session(self, request: NewSessionRequest) -> NewSessionResponse:
        folders = await _folders(request.cwd, request.additional_directories)
        options, session_id = self._options, uuid.uuid4().hex
        opened = OpenedChat(self._repository.new(), Conversation(options.answering))
        session, given = self._session(session_id, opened, folders, request.mcp_servers)
        conversation = session.chat.conversation
        conversation.settings = (await session.settings_editor.defaults(options.settings)).overridden(options.answering)
        tools = await options.tools.applied(_in_folders(ToolSettings(), folders, given), session.tools)
        conversation.settings = replace(conversation.settings, tools=tools)
        await self._add(session)
        return NewSessionResponse(session_id=session_id, **await self._choices(session))

    async def load_session(self, request: LoadSessionRequest) -> LoadSessionResponse:
        """Open a stored chat, and tell it as it was held before this returns."""
        session = await self._reopened(request)
        await session.replay()
        return LoadSessionResponse(**await self._choices(session))

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        return ResumeSessionResponse(**await self._choices(await self._reopened(request)))

    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        """Return the stored chats, the newest first; of one folder where the editor asks for that."""
        folder = str((await _folders(request.cwd, None))[0]) if request.cwd else ""
        cursor = request.cursor or ""
        if cursor and not (cursor.isascii() and cursor.isdecimal()):
            raise UsageError("The cursor is not one of this agent.", "List the sessions from the beginning.")
        found = await self._repository.thread.do(lambda store: _listed(store, folder, int(cursor) if cursor else None))
        sessions = [_session_info(chat, session_id) for chat, session_id in found[:_N_LISTED]]
        if len(found) > _N_LISTED:
            return ListSessionsResponse(sessions=sessions, next_cursor=str(found[_N_LISTED - 1][0].id))
        return ListSessionsResponse(sessions=sessions)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        session = self._open_session(request.session_id)
        del self._sessions[session.id]
        await session.close()
        return CloseSessionResponse()

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        """Delete the chat of a session, open or not; the app restores it for a week."""
        session_id = request.session_id
        chat_id = await self._repository.thread.do(lambda store: _chat_of(store, session_id))
        if chat_id is None:
            await self.close_session(CloseSessionRequest(session_id=session_id))  # one that was not asked anything yet
            return DeleteSessionResponse()
        await self._close_sessions_of(chat_id)
        key = await self._repository.thread.do(lambda store: _deleted(store, chat_id))
        self._in_background(forget_chat(self._connection, self._options.settings, key))
        return DeleteSessionResponse()

    async def set_mode(self, request: SetSessionModeRequest) -> SetSessionModeResponse:
        await self._open_session(request.session_id).set_mode(request.mode_id)
        return SetSessionModeResponse()

    async def set_option(
        self, request: SetSessionConfigOptionSelectRequest | SetSessionConfigOptionBooleanRequest
    ) -> SetSessionConfigOptionResponse:
        session = self._open_session(request.session_id)
        options = await session.set_option(request.config_id, str(request.value))
        return SetSessionConfigOptionResponse(config_options=options)

    async def prompt(self, request: PromptRequest) -> PromptResponse:
        session = self._open_session(request.session_id)
        return PromptResponse(stop_reason=await session.prompt(request.prompt))

    async def cancel(self, request: CancelNotification) -> None:
        if (session := self._sessions.get(request.session_id)) is not None:
            await session.cancel()

    # Sessions

    def _open_session(self, session_id: str) -> EditorSession:
        if (session := self._sessions.get(session_id)) is None:
            raise UnknownSessionError(session_id)
        return session

    def _session(
        self, session_id: str, opened: OpenedChat, folders: Sequence[Path], servers: Sequence[_Server] | None
    ) -> tuple[EditorSession, tuple[str, ...]]:
        """Return a session, and the names of the MCP servers that its editor gave."""
        options = self._options
        configs = _configs(servers or (), folders[0])
        terminal = EditorTerminal(self.editor, session_id)
        tools = LazyTools(options.settings, configs, EditorBuffers(self.editor, session_id), folders[0], terminal)
        session = EditorSession(
            session_id,
            opened,
            folders,
            options.mode,
            editor=self.editor,
            models=self._models,
            connection=self._connection,
            repository=self._repository,
            tools=tools,
            terminal=terminal,
            settings=options.settings,
            has_default_tools=options.has_default_tools and not opened.conversation.messages,
        )
        if configs and not MCP.is_installed:
            session.notices.append(str(MCP.missing))
            configs = ()
        return session, tuple(server_names(config.name for config in configs).values())

    async def _reopened(self, request: LoadSessionRequest | ResumeSessionRequest) -> EditorSession:
        folders = await _folders(request.cwd, request.additional_directories)
        session_id = request.session_id
        chat_id = await self._repository.thread.do(lambda store: _chat_of(store, session_id))
        if chat_id is None:
            return self._open_session(session_id)  # one that was not asked anything yet
        await self._close_sessions_of(chat_id)  # a chat is open once
        session, given = self._session(session_id, await self._repository.open(chat_id), folders, request.mcp_servers)
        conversation = session.chat.conversation
        tools = _in_folders(conversation.settings.tools, folders, given)
        conversation.settings = replace(conversation.settings, tools=tools)
        await self._add(session)
        return session

    async def _close_sessions_of(self, chat_id: int) -> None:
        """Close the sessions of a chat, which an editor may have under the two names that it may have."""
        for session in [each for each in self._sessions.values() if each.chat.stored.id == chat_id]:
            del self._sessions[session.id]
            await session.close()

    async def _add(self, session: EditorSession) -> None:
        self._sessions[session.id] = session
        await self._models.preload(session)

    async def _choices(self, session: EditorSession) -> dict[str, Any]:
        """Return what a person can choose in a session, for the response that opens it. What can be typed there is told
        behind that: an editor does not know the session before."""
        config_options = await session.options()
        self._in_background(session.introduce())
        return {"modes": mode_state(session.mode), "config_options": config_options}

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class SharedModels:
    """The models of the one connection: a session that is prompted gets its own, others that answer keep theirs."""

    def __init__(self, connection: ServiceConnection, sessions: Mapping[str, EditorSession]) -> None:
        self._connection = connection
        self._sessions = sessions
        self._one_at_a_time = asyncio.Lock()

    async def names(self) -> Sequence[str]:
        try:
            service = await self._connection.service()
            if is_localllm(service):
                return [printable_line(model.id) for model in await local_models(self._connection)]
            return [printable_line(model.id) for model in (await service.status()).models]
        except UserError:  # the prompt reports it
            return ()

    async def find(self, typed: str) -> tuple[str, str]:
        service = await self._connection.service()
        if is_localllm(service):
            model = find_model(typed, await local_models(self._connection))
            return model.path, printable_line(model.id)
        loaded = await service.load(typed)
        return loaded, printable_line(loaded)

    async def preload(self, session: EditorSession) -> None:
        """Load the model of a session that was opened, unless another one is answering or about to."""
        is_free = not self._one_at_a_time.locked() and not any(
            each.chat.is_answering for each in self._sessions.values()
        )
        if is_free and not self._connection.is_using(session.model):
            await self._connection.use_model(session.model)
        else:
            self._connection.start()

    async def answer_with(self, session: EditorSession, begin: Callable[[], object]) -> None:
        connection = self._connection
        async with self._one_at_a_time:
            if not connection.is_using(session.model):
                for other in self._sessions.values():
                    if other.chat.is_answering and not other.chat.pinned_model:
                        other.chat.pinned_model = connection.state.model
                await connection.use_model(session.model)
            session.chat.pinned_model = ""
            await connection.client()
            await session.prepare()
            begin()


async def serve(options: AgentOptions, stdin: int, stdout: int) -> None:
    """Answer an editor on two descriptors until its input ends."""
    # The package logs what it cannot handle with the whole of it, and nothing here may print a chat.
    logging.getLogger().addHandler(logging.NullHandler())
    settings = options.settings
    connection = ServiceConnection(local_service(settings), settings.model, settings.when_unfit)
    # Of unsent texts there are none here: those of the app stay.
    stored = SqliteChatRepository(settings.data_dir, settings.cache_dir, has_drafts=False)
    async with stored as repository, connection:
        agent = Agent(options, connection, repository)
        wire = Connection(agent.handle, StdioTransport(stdin, stdout), listening=False)
        agent.editor.connect(wire)
        try:
            await wire.main_loop()
            await agent.finish()
        finally:
            await agent.close()
            await wire.close()


# Sessions and chats


def _chat_of(store: ChatStore, session_id: str) -> int | None:
    """Return the chat of a session: the one that it began, or one of the app, listed under a name of ours."""
    chat_id = store.sessions.chat_of(session_id)
    named = _SESSION_OF_CHAT.fullmatch(session_id) if chat_id is None else None
    try:
        if chat_id is not None:
            return store.chats.get(chat_id).id
        if named is not None and (chat := store.chats.get(int(named[1]))).prompt_cache_key == session_id:
            return chat.id
    except UnknownChatError:
        return None
    return None


def _deleted(store: ChatStore, chat_id: int) -> str:
    """Delete a chat, and return what requests called it."""
    key = store.chats.get(chat_id).prompt_cache_key
    store.chats.delete(chat_id)
    return key


def _listed(store: ChatStore, folder: str, after_id: int | None) -> list[tuple[Chat, str]]:
    """Return one more chat than a page has, with its session, from after a chat on; of one folder, "" for all."""
    found = list[Chat]()
    try:
        last = None if after_id is None else store.chats.get(after_id)
    except UnknownChatError:
        raise UsageError("The chat of the cursor was deleted.", "List the sessions from the beginning.") from None
    while len(found) <= _N_LISTED and (page := store.chats.page(after=last)):
        last = page[-1]
        found += [chat for chat in page if not folder or folder in chat.settings.tools.folders[:1]]
    ids = store.sessions.of_chats([chat.id for chat in found])
    return [(chat, ids.get(chat.id, chat.prompt_cache_key)) for chat in found[: _N_LISTED + 1]]


def _session_info(chat: Chat, session_id: str) -> SessionInfo:
    folders = chat.settings.tools.folders
    return SessionInfo(
        session_id=session_id,
        cwd=folders[0] if folders else str(Path.home()),
        title=printable_line(chat.title),
        updated_at=datetime.fromtimestamp(chat.updated_ms / 1000, UTC).isoformat(),
    )


async def _folders(cwd: str, others: Sequence[str] | None) -> tuple[Path, ...]:
    """Return the resolved folders that an editor has open. Raises UsageError for what is no folder."""
    return await asyncio.to_thread(lambda: tuple(dict.fromkeys(_folder(text) for text in (cwd, *(others or ())))))


def _folder(text: str) -> Path:
    try:
        if (path := Path(text)).is_absolute() and (folder := path.resolve()).is_dir():
            return folder
    except (OSError, RuntimeError, ValueError):
        pass
    raise UsageError(f"{text[:200]!r} is not the absolute path of a folder.", "Open one that exists.")


def _in_folders(tools: ToolSettings, folders: Sequence[Path], servers: Sequence[str]) -> ToolSettings:
    """Return `tools` with the editor's folders first, and the MCP servers that it gave switched on."""
    named = tuple(dict.fromkeys((*map(str, folders), *tools.folders)))
    return replace(tools, folders=named, enabled=tuple(dict.fromkeys((*tools.enabled, *servers))))


def _configs(servers: Sequence[_Server], folder: Path) -> tuple[ServerConfig, ...]:
    """Return an editor's MCP servers as entries of `mcp.json`. Raises UsageError for one that cannot be started."""
    configs = list[ServerConfig]()
    for server in servers:
        if isinstance(server, McpServerStdio):
            env = {variable.name: variable.value for variable in server.env}
            entry: dict[str, Any] = {"command": server.command, "args": server.args, "env": env, "cwd": str(folder)}
        elif isinstance(server, AcpMcpServer):
            raise UsageError(f"{server.name[:80]} is an MCP server within the editor.", "Give its command or its URL.")
        else:
            headers = {header.name: header.value for header in server.headers}
            entry = {"type": server.type, "url": server.url, "headers": headers}
        config = config_of(server.name, entry)
        if config.problem:
            raise UsageError(f"The MCP server {server.name[:80]!r} is not valid. {config.problem}", "Correct it.")
        if any(config.name == other.name for other in configs):
            raise UsageError(f"Two MCP servers are called {server.name[:80]!r}.", "Rename one.")
        configs.append(config)
    return tuple(configs)


# Requests


def _validated(kind: type[BaseModel] | None, params: Any) -> Any:
    """Return the parameters of a request. Raises UsageError, which quotes none of them."""
    given = {} if params is None else params
    if kind is None:
        is_boolean = isinstance(given, dict) and given.get("type") == "boolean"
        kind = SetSessionConfigOptionBooleanRequest if is_boolean else SetSessionConfigOptionSelectRequest
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        shown = [f"{'.'.join(map(str, fault['loc']))[:80] or 'it'}: {fault['msg']}" for fault in faults]
        more = f" ({len(shown)} faults)" if len(shown) > _N_TOLD_FAULTS else ""
        cause = f"The request is not valid: {'; '.join(shown[:_N_TOLD_FAULTS])}{more}."
        raise UsageError(cause, "Send what the protocol's schema says.") from None


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of the agent, and what its parameters are; None for those that their own type chooses."""

    kind: type[BaseModel] | None
    call: Callable[[Agent, Any], Awaitable[BaseModel | None]]
    is_notification: bool = False


_METHODS: Mapping[str, _Method] = {
    AGENT_METHODS["initialize"]: _Method(InitializeRequest, Agent.initialize),
    AGENT_METHODS["authenticate"]: _Method(AuthenticateRequest, Agent.authenticate),
    AGENT_METHODS["session_new"]: _Method(NewSessionRequest, Agent.new_session),
    AGENT_METHODS["session_load"]: _Method(LoadSessionRequest, Agent.load_session),
    AGENT_METHODS["session_resume"]: _Method(ResumeSessionRequest, Agent.resume_session),
    AGENT_METHODS["session_list"]: _Method(ListSessionsRequest, Agent.list_sessions),
    AGENT_METHODS["session_close"]: _Method(CloseSessionRequest, Agent.close_session),
    AGENT_METHODS["session_delete"]: _Method(DeleteSessionRequest, Agent.delete_session),
    AGENT_METHODS["session_set_mode"]: _Method(SetSessionModeRequest, Agent.set_mode),
    AGENT_METHODS["session_set_config_option"]: _Method(None, Agent.set_option),
    AGENT_METHODS["session_prompt"]: _Method(PromptRequest, Agent.prompt),
    AGENT_METHODS["session_cancel"]: _Method(CancelNotification, Agent.cancel, is_notification=True),
}
