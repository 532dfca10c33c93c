"""Listing folders and searching files in a process that can be stopped, and the text of what it found.

Owns the limits and the form in which a model reads entries and matches; `folder_child` does the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.common.terminal import counted, quoted_name
from app.tools.tool import ToolOutput
from quantizer.system.child_request import Message, open_child
from quantizer.system.process import python_command

TIMEOUT_S = 30.0
_MAX_ENTRIES, _MAX_VISITED, _MAX_MATCHES = 1_000, 200_000, 500
_NAME = "folder reader"
_KINDS = {"folder": "/", "link": "  (a link, which is not followed)", "other": "  (no plain file)"}


@dataclass(frozen=True, slots=True)
class Place:
    """What is listed or searched: the resolved path, the folder of the chat that it is in, and how it is called."""

    top: Path
    root: Path
    shown: str

    def request(self, action: str, **values: Any) -> Message:
        return {"action": action, "top": str(self.top), "root": str(self.root), "shown": self.shown, **values}


async def list_folder(place: Place, depth: int, *, has_ignored: bool) -> ToolOutput:
    """Return what is in a folder. Raises UserError."""
    request = place.request(
        "list", depth=depth, has_ignored=has_ignored, max_entries=_MAX_ENTRIES, max_visited=_MAX_VISITED
    )
    entries, end = await _found(request, "entry")
    lines = []
    for path, kind, n_bytes, problem in entries:
        about = f"  {n_bytes:,} bytes" if kind == "file" else _KINDS[kind]
        lines.append(f"{quoted_name(path)}{f'/  ({problem})' if problem else about}")
    n_all = len(lines)
    if end["n_more"]:
        at_least = "" if end["is_whole"] else "at least "
        lines.append(f"[{at_least}{end['n_more']:,} more entries are not shown; list a folder in it]")
    return ToolOutput("\n".join(lines) or "(empty)", detail=counted(n_all + end["n_more"], "entry", "entries"))


async def search_text(
    place: Place, pattern: str, *, is_regex: bool, ignores_case: bool, glob: str, has_ignored: bool
) -> ToolOutput:
    """Return the lines of files that have `pattern`. Raises UserError."""
    request = place.request(
        "search",
        pattern=pattern,
        is_regex=is_regex,
        ignores_case=ignores_case,
        glob=glob,
        has_ignored=has_ignored,
        max_matches=_MAX_MATCHES,
    )
    matches, end = await _found(request, "match")
    lines = [f"{quoted_name(path) if path else place.shown}:{number}: {line}" for path, number, line in matches]
    n_all = len(lines) + end["n_more"]
    if end["n_more"]:
        lines.append(f"[{end['n_more']:,} more lines match; search in a folder, or for a longer text]")
    detail = f"{counted(n_all, 'line')} in {counted(end['n_searched'], 'file')}"
    unread = f" ({end['n_unread']:,} files are no text, too large or not readable)" if end["n_unread"] else ""
    other = f" {counted(end['n_other_case'], 'line')} in another case: use ignore_case." if end["n_other_case"] else ""
    text = "\n".join(lines) or f"No line matches in {counted(end['n_searched'], 'file')}{unread}.{other}"
    return ToolOutput(text, detail=detail + unread)


async def _found(request: Message, key: str) -> tuple[list[Any], Message]:
    """Run the child, and return what its messages have under `key` and its end. Raises UserError."""
    command = python_command("app.tools.builtin.folder_child")
    async with open_child(command, request, _NAME, "Try again.") as (_, received):
        messages = [message async for message in received]
    return [message[key] for message in messages if key in message], messages[-1]["end"]
