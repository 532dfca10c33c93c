"""All tools of one window, put together: the built-in servers, those of others, and the history of files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.common.event_log import log_event
from app.settings.settings import settings_file
from app.tools.builtin.commands import CommandServer
from app.tools.builtin.files import FileServer
from app.tools.builtin.web import WebServer
from app.tools.environment import command_environment
from app.tools.file_history import FOLDER_NAME, FileHistory
from app.tools.runner import ToolRunner
from app.tools.tool import ToolServer
from quantizer.system.errors import StorageError

_TRUSTED = ("files",)  # what only reads in the folders of a chat needs no question


def built_in_servers(
    history: FileHistory, own_folders: Sequence[Path] = (), variables: Sequence[str] = ()
) -> tuple[ToolServer, ...]:
    """Return the servers that come with localllm; what they overwrite is kept in `history`. They write no file in
    `own_folders`. Commands get the `variables` of the environment besides the usual ones."""
    environment = command_environment(os.environ, variables)
    return (FileServer(history, own_folders), CommandServer(environment), WebServer())


def tool_runner(data_dir: Path, others: Iterable[ToolServer] = (), variables: Sequence[str] = ()) -> ToolRunner:
    """Return the tools of a window whose data is in `data_dir`, with the servers of `others` after the built-in ones.
    Commands get the `variables` of the environment besides the usual ones. What killed processes left of files is
    removed meanwhile, in a thread."""
    history = FileHistory(data_dir / FOLDER_NAME)
    threading.Thread(target=_sweep, args=(history,), name="file-history", daemon=True).start()
    servers = (*built_in_servers(history, (data_dir, settings_file().parent), variables), *others)
    return ToolRunner(servers, history.undo, trusted=_TRUSTED)


def _sweep(history: FileHistory) -> None:
    try:
        history.sweep()
    except StorageError as error:  # the next start tries again
        log_event("tools", str(error))
