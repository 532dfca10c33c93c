"""The child process that lists folders and searches files (this module as `__main__`); `folder_search` starts it.

A pattern of a model or of a .gitignore may take forever to match, and Python cannot stop it: a process can be killed.
Owns the order of work and the messages: {"entry": ...} or {"match": ...}, each as it is found, and {"end": ...}.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.tools.builtin.edits import NotTextError, read_text
from app.tools.builtin.walk import matches_glob, walk
from app.tools.file_access import open_folder
from quantizer.system.child_request import serve_request
from quantizer.system.errors import StorageError, UsageError

MAX_SHOWN_CHARACTERS = 300  # of a line
_N_BEFORE = 60  # characters of a long line that are shown before the match

Message = dict[str, Any]
Send = Callable[[Message], None]


def list_entries(request: Message, send: Send) -> None:
    """Send what is in the folder `top`, to a depth, and how many entries more there are than `max_entries`."""
    n_found, n_sent = 0, 0
    top, root = Path(request["top"]), Path(request["root"])
    for entry in walk(top, root, max_depth=request["depth"], has_ignored=request["has_ignored"]):
        n_found += 1
        if n_sent < request["max_entries"]:
            n_sent += 1
            send({"entry": [entry.path, entry.kind, entry.n_bytes, entry.problem]})
        if n_found >= request["max_visited"]:
            break
    send({"end": {"n_more": n_found - n_sent, "is_whole": n_found < request["max_visited"]}})


def search(request: Message, send: Send) -> None:
    """Send the lines with the pattern of the files below `top`, or of that file, up to `max_matches`. Raises UsageError
    for a regular expression that is none."""
    pattern = request["pattern"] if request["is_regex"] else re.escape(request["pattern"])
    try:
        expression = re.compile(pattern, re.IGNORECASE if request["ignores_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"The regular expression is not valid: {error}.", "Correct it, or search the text.") from None
    # Small models often write a name in another case than the file: that is worth saying where nothing else is found.
    other_case = None if request["ignores_case"] else re.compile(pattern, re.IGNORECASE)
    n_sent, n_more, n_other_case, n_searched, n_unread = 0, 0, 0, 0, 0
    for path, shown in _files(request):
        text = _text_of(path)
        if text is None:
            n_unread += 1
            continue
        n_searched += 1
        for number, line in enumerate(text.split("\n"), 1):
            if (found := expression.search(line)) is None:
                if other_case is not None and not n_sent and other_case.search(line) is not None:
                    n_other_case += 1
                continue
            if n_sent < request["max_matches"]:
                n_sent += 1
                send({"match": [shown, number, _shown(line.rstrip("\r"), found.start())]})
            else:
                n_more += 1
    end = {"n_more": n_more, "n_other_case": n_other_case, "n_searched": n_searched, "n_unread": n_unread}
    send({"end": end})


def _files(request: Message) -> Iterator[tuple[Path, str]]:
    """Yield the files to search, each with its path from `top`, "" for `top` itself."""
    top, root = Path(request["top"]), Path(request["root"])
    if not top.is_dir():
        yield top, ""
        return
    for entry in walk(top, root, has_ignored=request["has_ignored"]):
        if entry.kind == "file" and (not request["glob"] or matches_glob(request["glob"], entry.path)):
            yield top / entry.path, entry.path


def _text_of(path: Path) -> str | None:
    """Return the text of a file, None for one that is none, too large or not readable."""
    try:
        with open_folder(path.parent) as folder:
            content = folder.read(path.name).content
        return None if content is None else read_text(content)[0]
    except (OSError, StorageError, NotTextError):
        return None


def _shown(line: str, place: int) -> str:
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line
    begin = max(0, min(place - _N_BEFORE, len(line) - MAX_SHOWN_CHARACTERS))
    end = begin + MAX_SHOWN_CHARACTERS
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}"


def _work(request: Message, send: Send) -> None:
    try:
        (list_entries if request["action"] == "list" else search)(request, send)
    except OSError as error:
        raise StorageError(f"{request['shown']} cannot be read: {error.strerror or error}.") from error


if __name__ == "__main__":
    sys.exit(serve_request(_work))
