"""What models are told of the tools for files: names, descriptions, arguments. Pure."""

from __future__ import annotations

from typing import Any

from app.protocol.chat import Tool
from app.tools.builtin.folder_search import TIMEOUT_S
from app.tools.tool import Effect, ServerTool

SERVER = "files"
_TEXT = {"type": "string"}
_PATH = {"type": "string", "description": "Path from the chat's first folder, or a whole path in one of its folders."}
_HAS_IGNORED = {"type": "boolean", "description": "Also what .gitignore excludes. Default: false."}


def _tool(
    name: str, title: str, effect: Effect, description: str, required: tuple[str, ...], **arguments: Any
) -> ServerTool:
    parameters = {
        "type": "object",
        "properties": arguments,
        "required": list(required),
        "additionalProperties": False,
    }
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
    path={**_PATH, "description": "Folder; default: the chat's first folder."},
    depth={"type": "integer", "minimum": 1, "maximum": 10, "description": "Levels of folders to list. Default: 1."},
    include_ignored=_HAS_IGNORED,
)
SEARCH_TEXT = _tool(
    "search_text",
    "Search text in files",
    Effect.READ,
    "Find the lines of files that contain a text or match a regular expression.",
    ("pattern",),
    pattern={"type": "string", "minLength": 1, "maxLength": 1000, "description": "Text to find within a line."},
    path={**_PATH, "description": "Folder or file to search; default: the chat's first folder."},
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
    content=_TEXT,
)
EDIT_FILE = _tool(
    "edit_file",
    "Edit a file",
    Effect.WRITE,
    "Replace a text in a file by another. The old text must be in the file exactly once, with its spaces.",
    ("path", "old_text", "new_text"),
    path=_PATH,
    old_text={"type": "string", "minLength": 1},
    new_text=_TEXT,
)
FILE_TOOLS = (READ_FILE, LIST_FOLDER, SEARCH_TEXT, WRITE_FILE, EDIT_FILE)
