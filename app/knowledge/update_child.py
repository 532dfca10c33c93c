"""The child process that reads folders for the app (this module as `__main__`); `app.knowledge.updating` starts it.

Reading takes the interpreter for seconds, which the screen needs, and a process can be given less processor time, and
be killed at any moment. Owns the messages: {"folder": ..., "progress": {...}} now and then, at the end of a folder with
{"problem": ...} where it was not read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.knowledge.reading import ReadProgress, read_folder
from app.knowledge.store import KnowledgeStore
from quantizer.system.child_request import serve_request
from quantizer.system.errors import StorageError
from quantizer.system.files import is_folder

Message = dict[str, Any]
_SENT_EVERY_S = 0.2


def update(request: Message, send: Callable[[Message], None]) -> None:
    """Read the folders at the paths `folders`, without any all that were added, leaving out `excluded`. Raises
    StorageError where the disk takes no more, UsageError where another process changes the knowledge."""
    excluded = tuple(map(Path, request["excluded"]))
    with KnowledgeStore(Path(request["data_dir"])) as store, store.writing_alone():
        for folder in store.folders():
            if request["folders"] and str(folder.path) not in request["folders"]:
                continue
            progress, sent_s, problem = ReadProgress(), 0.0, ""
            try:
                with closing(read_folder(store, folder, excluded)) as steps:
                    for progress in steps:
                        if time.monotonic() - sent_s >= _SENT_EVERY_S:
                            sent_s = time.monotonic()
                            send({"folder": str(folder.path), "progress": asdict(progress)})
            except StorageError as error:
                if is_folder(folder.path):  # else the disk is full, say, which ends all
                    raise
                problem = str(error)
            send({"folder": str(folder.path), "progress": asdict(progress), "problem": problem})


if __name__ == "__main__":
    sys.exit(serve_request(update))
