"""The server of tools for files: what models read about them, reading, listing, searching, and writing.

Owns what a read returns of a long file, and that a write happens only to the file as its preview saw it. The rules
about paths are in `folders`, the disk is `app.tools.file_access` and `app.tools.file_history`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.common.terminal import counted
from app.protocol.chat import Tool
from app.tools.builtin.edits import NEW_TEXT, NotTextError, TextForm, diff_of, edited, read_text
from app.tools.builtin.folder_search import TIMEOUT_S, Place, list_folder, search_text
from app.tools.builtin.folders import Folders, PathRefusedError
from app.tools.builtin.near_names import what_is_there
from app.tools.file_access import MAX_FILE_BYTES, FileState, file_state
from app.tools.file_history import FileHistory
from app.tools.tool import (
    CallContext,
    Effect,
    FileChange,
    FixedServer,
    OpenBuffers,
    Preview,
    ServerTool,
    ToolOutput,
)
from quantizer.system.errors import StorageError
from quantizer.system.files import explained

_MAX_PREVIEWED = 16
_TOO_LARGE = f"more than {MAX_FILE_BYTES >> 20} MiB"
_NOT_KEPT = f"[The file has {_TOO_LARGE}: what it holds is not kept, and this cannot be undone]"


@dataclass(frozen=True, slots=True)
class _Write:
    """A write as it was shown: the resolved path, how it is called, the file before, and what it will hold, also as the
    text `after`, which an editor can write where it `is_plain` UTF-8. Of a file that `is_unsaved` in an editor, `state`
    has the content of its buffer."""

    path: Path
    shown: str
    state: FileState
    content: bytes
    summary: str
    text: str
    after: str
    is_unsaved: bool
    is_plain: bool

    @property
    def is_kept(self) -> bool:
        return not self.state.exists or self.state.content is not None


class FileServer(FixedServer):
    """A `ToolServer` for the files in the folders of a chat; what it overwrites is kept in `history`. It writes none in
    `own_folders`, those of localllm. Of a text that an editor has in its `buffers`, the buffer is read and written."""

    def __init__(
        self, history: FileHistory, own_folders: Sequence[Path] = (), buffers: OpenBuffers | None = None
    ) -> None:
        super().__init__(SERVER, FILE_TOOLS)
        self._history = history
        self._buffers = buffers
        self._own_folders = tuple(own_folders)
        self._previewed: OrderedDict[str, _Write] = OrderedDict()

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        """Return what a call would do: of a write its difference. Raises UserError for one that is not possible."""
        if tool in (WRITE_FILE, EDIT_FILE):
            write = await self._planned_with_buffer(tool, arguments, context)
            self._previewed[_key(tool, arguments, context)] = write
            while len(self._previewed) > _MAX_PREVIEWED:
                self._previewed.popitem(last=False)
            return Preview("diff", f"{_verb(tool)} {write.shown}", write.text)
        folders = Folders(context.folders)
        shown = folders.shown(folders.find(arguments.get("path", ".")))
        sought = f" for {arguments['pattern']}" if tool == SEARCH_TEXT else ""
        text = json.dumps(dict(arguments), ensure_ascii=False, indent=2)
        return Preview("arguments", f"{_verb(tool)} {shown}{sought}", text)

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Run a call. Raises UserError for a write to a file that is no longer as it was shown."""
        if tool in (WRITE_FILE, EDIT_FILE):
            return await self._write(tool, arguments, context)
        if tool == READ_FILE:
            buffer = await self._buffer(_place(arguments, context).top)
            return await asyncio.to_thread(read_lines, arguments, context, buffer)
        place, has_ignored = _place(arguments, context), bool(arguments.get("include_ignored"))
        await asyncio.to_thread(_check_is_there, place, context, is_folder=tool == LIST_FOLDER)
        if tool == LIST_FOLDER:
            return await list_folder(place, int(arguments.get("depth", 1)), has_ignored=has_ignored)
        return await search_text(
            place,
            arguments["pattern"],
            is_regex=bool(arguments.get("is_regex")),
            ignores_case=bool(arguments.get("ignore_case")),
            glob=arguments.get("glob", ""),
            has_ignored=has_ignored,
        )

    async def _write(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        shown = self._previewed.pop(_key(tool, arguments, context), None)
        if shown is None:
            raise StorageError("A write was not shown before it was to happen.", "Call the tool again.")
        now = await self._planned_with_buffer(tool, arguments, context)
        if (now.path, now.state.sha256, now.content) != (shown.path, shown.state.sha256, shown.content):
            raise StorageError(f"{shown.shown} was changed after this was shown.", "Read it again, and decide anew.")
        change = await asyncio.to_thread(self._history.prepare, now.path, now.state, now.content)
        await context.record_change(change)
        writing = asyncio.ensure_future(self._make(change, now, context))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:  # it is finished all the same: it must not be left open whether it happened
            await asyncio.wait({writing})
            writing.result()
            raise
        known = context.known_files.setdefault(str(now.path), {now.state.sha256})
        if tool == WRITE_FILE or now.state.sha256 in known:  # else it kept a change that the chat has not read
            known |= {now.state.sha256, writing.result()}
        lines = [f"{'Wrote' if tool == WRITE_FILE else 'Edited'} {now.shown} ({now.summary})."]
        if not now.is_kept:
            lines.append(_NOT_KEPT)
        return ToolOutput("\n".join(lines), detail=now.summary if now.is_kept else f"{now.summary}, cannot be undone")

    async def _make(self, change: FileChange, write: _Write, context: CallContext) -> str:
        """Make a write that was recorded, in the editor where that writes files, and return the SHA-256 of what the
        file holds then. Raises StorageError where it refuses, and for unsaved text of one that writes none."""
        if self._buffers is not None and write.is_plain and await self._buffers.write(write.path, write.after):
            # What the editor made of it when it saved it, as its formatter does, can be undone too.
            state = await asyncio.to_thread(_state_of, write.path, write.shown)
            if state.content is not None and state.sha256 != change.after:
                planned = replace(state, sha256=change.after, content=write.content)
                await context.record_change(
                    await asyncio.to_thread(self._history.prepare, write.path, planned, state.content)
                )
            return state.sha256
        if write.is_unsaved:
            raise StorageError(f"{write.shown} has unsaved text in the editor.", "Save it there.")
        await asyncio.to_thread(self._history.write, change, write.state, write.content)
        return change.after

    async def _buffer(self, path: Path) -> str | None:
        return None if self._buffers is None else await self._buffers.read(path)

    async def _planned_with_buffer(
        self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext
    ) -> _Write:
        """Return what a write would do now. Raises UserError for one that is not possible."""
        path = Folders(context.folders, self._own_folders).find(arguments["path"], is_written=True)
        return await asyncio.to_thread(self._planned, tool, arguments, context, await self._buffer(path))

    def _planned(
        self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext, buffer: str | None
    ) -> _Write:
        folders, is_edited = Folders(context.folders, self._own_folders), tool == EDIT_FILE
        path = folders.find(arguments["path"], is_written=True)
        shown = folders.shown(path)
        state, is_unsaved = _with_buffer(_state_of(path, shown), buffer)
        if is_edited and not state.exists:
            raise PathRefusedError(
                f"There is no file {shown}.", f"{what_is_there(folders, path)} write_file makes a new one."
            )
        known = context.known_files.get(str(path))
        if known and state.exists and not is_edited and state.sha256 not in known:
            # Another agent or the person changed it: the whole new content is made of what it held before.
            remedy = "Read it again, and write what keeps that change, or use edit_file."
            raise StorageError(f"{shown} was changed since you read it.", remedy)
        before, form, notes = _text_before(state, shown, is_edited=is_edited)
        if is_edited:
            after = edited(before, arguments["old_text"], arguments["new_text"], form)
        else:
            after = form.with_endings(arguments["content"]) if state.exists and before else arguments["content"]
        if state.n_links > 1:
            notes.append(f"[{shown} has {state.n_links} names: the others keep what it holds now]")
        try:
            content = form.encode(after)
        except NotTextError:
            if is_edited:
                raise
            content = NEW_TEXT.encode(after)
            notes.append("[The encoding becomes UTF-8]")
        if len(content) > MAX_FILE_BYTES:
            raise StorageError(f"The content has {_TOO_LARGE}.", "Write smaller files.")
        diff = diff_of(before, after)
        names = f"--- {shown if state.exists else '/dev/null'}\n+++ {shown}"
        text = "\n".join([*notes, names, diff.text or "(no difference)"])
        is_line_diff = before or not state.exists
        summary = diff.summary if is_line_diff else f"{len(content):,} bytes in place of {state.n_bytes:,}"
        is_plain = content == NEW_TEXT.encode(after)
        return _Write(path, shown, state, content, summary, text, after, is_unsaved, is_plain)


def _text_before(state: FileState, shown: str, *, is_edited: bool) -> tuple[str, TextForm, list[str]]:
    """Return the text that a write replaces, its form, and what the person should know. Raises UserError."""
    if not state.exists:
        return "", NEW_TEXT, ["[A new file]"]
    if state.content is None:
        if is_edited:
            raise StorageError(f"{shown} has {_TOO_LARGE}.", "Edit it with a command.")
        return "", NEW_TEXT, [f"[{shown} has {state.n_bytes:,} bytes, all of which are replaced]", _NOT_KEPT]
    try:
        text, form = read_text(state.content)
    except NotTextError:
        if is_edited:
            raise
        return "", NEW_TEXT, [f"[{shown} is no text; all of its {state.n_bytes:,} bytes are replaced]"]
    return text, form, [f"[{form.title}]"] if form.title else []


def _with_buffer(state: FileState, buffer: str | None) -> tuple[FileState, bool]:
    """Return the state of a file with the content of an editor's `buffer`, and whether that is not saved. The file
    stays as it is where its text is the same but for line endings, and where the disk has no UTF-8."""
    if buffer is None or (state.exists and state.content is None):
        return state, False
    text, form = None, NEW_TEXT
    if state.content is not None:
        try:
            text, form = read_text(state.content)
        except NotTextError:
            return state, False
    is_utf_8 = (form.encoding, form.mark) == (NEW_TEXT.encoding, NEW_TEXT.mark)
    if not is_utf_8 or (text is not None and text.replace("\r\n", "\n") == buffer.replace("\r\n", "\n")):
        return state, False
    content = form.encode(form.with_endings(buffer))
    return replace(state, sha256=hashlib.sha256(content).hexdigest(), content=content, n_bytes=len(content)), True


def read_lines(arguments: Mapping[str, Any], context: CallContext, buffer: str | None) -> ToolOutput:
    """Return the text of a file, or as many of its lines as fit the context."""
    place = _place(arguments, context)
    shown, (state, _) = place.shown, _with_buffer(_state_of(place.top, place.shown), buffer)
    if not state.exists:
        raise PathRefusedError(f"There is no file {shown}.", what_is_there(Folders(context.folders), place.top))
    if state.content is None:
        raise StorageError(f"{shown} has {_TOO_LARGE}.", "Search it, or read a part of it with a command.")
    text, form = read_text(state.content)
    context.known_files.setdefault(str(place.top), set()).add(state.sha256)
    lines = text.replace("\r\n", "\n").split("\n")
    n_lines = len(lines) - (not lines[-1])
    first, last = int(arguments.get("first_line", 1)), min(int(arguments.get("last_line", n_lines)), n_lines)
    if first > max(last, 1):
        raise PathRefusedError(f"{shown} has {counted(n_lines, 'line')}, and not {first}-{last}.", "Ask for others.")
    chosen = _fitting(lines[first - 1 : last], context.max_characters)
    end = first + len(chosen) - 1
    notes = [form.title] if form.title else []
    if (first, end) != (1, n_lines):
        notes.append(f"lines {first:,} to {end:,} of {n_lines:,}")
        if end < last:
            notes.append(f"go on with first_line {end + 1}")
    head = f"[{'; '.join(notes)}]\n" if notes else ""
    detail = counted(n_lines, "line") if (first, end) == (1, n_lines) else f"lines {first:,} to {end:,} of {n_lines:,}"
    whole = "\n".join(chosen) + ("\n" if chosen and end < len(lines) else "")
    return ToolOutput(head + whole, detail=detail, n_bytes=len((head + whole).encode()))


def _fitting(lines: list[str], max_characters: int) -> list[str]:
    """Return the first lines that fit, but one at least: a longer one is cut by whoever bounds the output."""
    left = max_characters - 200  # for the line that says what is shown
    for number, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0 and number:
            return lines[:number]
    return lines


def _check_is_there(place: Place, context: CallContext, *, is_folder: bool) -> None:
    """Raise PathRefusedError where there is nothing to list or to search."""
    if is_folder and place.top.is_file():
        raise PathRefusedError(f"{place.shown} is a file, not a folder.", "read_file reads it.")
    if not (place.top.is_dir() if is_folder else place.top.exists()):
        remedy = what_is_there(Folders(context.folders), place.top, is_folder=is_folder)
        raise PathRefusedError(f"There is no {'folder ' * is_folder}{place.shown}.", remedy)


def _state_of(path: Path, shown: str) -> FileState:
    with explained(f"{shown} cannot be read", "Check its permissions."):
        if path.is_dir():
            raise PathRefusedError(f"{shown} is a folder.", "list_folder shows what is in it; name one of its files.")
        return file_state(path)


def _verb(tool: ServerTool) -> str:
    return tool.name.partition("_")[0]


def _place(arguments: Mapping[str, Any], context: CallContext) -> Place:
    folders = Folders(context.folders)
    path = folders.find(arguments.get("path", "."))
    return Place(path, folders.root_of(path), folders.shown(path))


def _key(tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> str:
    return json.dumps([tool.name, dict(arguments), [str(folder) for folder in context.folders]], sort_keys=True)


SERVER = "files"
_PATH = {
    "type": "string",
    "description": "Path from the chat's first folder, or a whole path in one of its folders.",
    "examples": ["notes.txt"],
}
_HAS_IGNORED = {"type": "boolean", "description": "Also what .gitignore excludes. Default: false."}


def _tool(
    name: str, title: str, effect: Effect, description: str, required: tuple[str, ...], **arguments: Any
) -> ServerTool:
    parameters = {"type": "object", "properties": arguments, "required": list(required), "additionalProperties": False}
    return ServerTool(SERVER, name, Tool(name, description, parameters), effect, title, timeout_s=TIMEOUT_S)


READ_FILE = _tool(
    "read_file",
    "Read a file",
    Effect.READ,
    "Read a text file, or some of its lines.",
    ("path",),
    path=_PATH,
    first_line={"type": "integer", "minimum": 1, "description": "Default: 1."},
    last_line={"type": "integer", "minimum": 1, "description": "Default: the last one."},
)
LIST_FOLDER = _tool(
    "list_folder",
    "List a folder",
    Effect.READ,
    "List the files and folders in a folder.",
    (),
    path={"type": "string", "description": "Folder; default: the chat's first folder."},
    depth={"type": "integer", "minimum": 1, "maximum": 10, "description": "Levels of folders to list. Default: 1."},
    include_ignored=_HAS_IGNORED,
)
SEARCH_TEXT = _tool(
    "search_text",
    "Search text in files",
    Effect.READ,
    "Find the lines of files that contain a text or match a regular expression.",
    ("pattern",),
    pattern={
        "type": "string",
        "minLength": 1,
        "maxLength": 1000,
        "description": "Text to find within a line.",
        "examples": ["tea"],
    },
    path={"type": "string", "description": "Folder or file to search; default: the chat's first folder."},
    glob={"type": "string", "maxLength": 200, "description": "Only files of this form, such as *.py or src/**/*.ts."},
    is_regex={"type": "boolean", "description": "The pattern is a regular expression of Python. Default: false."},
    ignore_case={"type": "boolean", "description": "Default: false."},
    include_ignored=_HAS_IGNORED,
)
WRITE_FILE = _tool(
    "write_file",
    "Write a file",
    Effect.WRITE,
    "Write a whole text file: a new one, or in place of what it holds. To change a part of a file, use edit_file.",
    ("path", "content"),
    path=_PATH,
    content={"type": "string", "examples": ["Tea."]},
)
EDIT_FILE = _tool(
    "edit_file",
    "Edit a file",
    Effect.WRITE,
    "Replace a text in a file by another. The old text must be in the file exactly once, with its spaces.",
    ("path", "old_text", "new_text"),
    path=_PATH,
    old_text={"type": "string", "minLength": 1, "examples": ["Tea"]},
    new_text={"type": "string", "examples": ["Milk"]},
)
FILE_TOOLS = (READ_FILE, LIST_FOLDER, SEARCH_TEXT, WRITE_FILE, EDIT_FILE)
