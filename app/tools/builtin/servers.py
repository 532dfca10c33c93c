"""All tools of one window, put together: the built-in servers, those of others, and the history of files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.common.event_log import log_event
from app.knowledge.models import Connect
from app.settings.settings import settings_file
from app.tools.approval import KNOWLEDGE
from app.tools.builtin.commands import CommandServer
from app.tools.builtin.files import FileServer
from app.tools.builtin.knowledge import KnowledgeServer
from app.tools.builtin.processes import CommandTerminal
from app.tools.builtin.skills import SKILLS, SkillServer
from app.tools.builtin.web import WebServer
from app.tools.builtin.web_search import search_service
from app.tools.environment import command_environment
from app.tools.file_history import FOLDER_NAME, FileHistory
from app.tools.runner import ToolRunner
from app.tools.tool import OpenBuffers, ToolServer
from app.tools.trust import trusted_folders
from quantizer.system.errors import StorageError, UserError

_TRUSTED = ("files", KNOWLEDGE, SKILLS)  # what only reads in the folders that a person named needs no question


def tool_runner(
    data_dir: Path,
    others: Iterable[ToolServer] = (),
    variables: Sequence[str] = (),
    connect: Connect | None = None,
    reranker: str = "",
    web_search: str = "",
    web_search_key: str = "",
    buffers: OpenBuffers | None = None,
    folder: Path | None = None,
    terminal: CommandTerminal | None = None,
) -> ToolRunner:
    """Return the tools of a window whose data is in `data_dir`, with the servers of `others` after the built-in ones.
    What they overwrite is kept in the file history; they write no file in the folders of localllm itself. Commands get
    the `variables` of the environment besides the usual ones. Knowledge is searched with the models to which `connect`
    leads, by words alone without it, and the web as the setting `web_search` says. Files that an editor has open are
    read and written in its `buffers`, and commands run in its `terminal`. Skills are the person's and those of `folder`
    (None: the current one). What killed processes left of files is removed meanwhile, in a thread."""
    history = FileHistory(data_dir / FOLDER_NAME)
    threading.Thread(target=_sweep, args=(history,), name="file-history", daemon=True).start()
    environment = command_environment(os.environ, variables)
    search, problem = None, ""
    try:
        search = search_service(web_search, web_search_key, environment)
    except UserError as error:  # pages can be fetched all the same
        problem = str(error)
    servers: tuple[ToolServer, ...] = (
        FileServer(history, (data_dir, settings_file().parent), buffers),
        CommandServer(environment, terminal),
        WebServer(None, search, problem),
        KnowledgeServer(data_dir, connect, reranker),
        SkillServer(settings_file().with_name(SKILLS), folder or Path.cwd(), trusted_folders()),
        *others,
    )
    return ToolRunner(servers, history.undo, trusted=_TRUSTED)


def _sweep(history: FileHistory) -> None:
    try:
        history.sweep()
    except StorageError as error:  # the next start tries again
        log_event("tools", str(error))
