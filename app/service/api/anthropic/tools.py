"""The tools of Anthropic's API that a client runs and whose schema its models know by heart, as functions.

A request names them by a type with a date. Source: the types of Anthropic's SDK for Python, 2.14, and the API's pages
on the bash, text editor, memory and computer use tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import StrictBool, StrictInt, StrictStr

from app.protocol.chat import Tool
from app.protocol.errors import RequestError
from app.service.api.fields import Body

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_POINT: Final = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_FILES: Final[Mapping[str, Any]] = {
    "path": _TEXT,
    "view_range": _POINT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "insert_text": _TEXT,
}
_EDIT = (
    "View and edit text files. `view` shows a file, or its lines in `view_range` (from, to; -1 is the end), or a "
    "folder; `create` writes `file_text`; `str_replace` replaces `old_str`, which must be in the file once, by "
    "`new_str`; `insert` puts `insert_text` after line `insert_line`, 0 for the beginning."
)
_MEMORY = (
    "Keep what is to be remembered in files below /memories. `view` shows a folder or a file, `create` writes "
    "`file_text`, `str_replace` replaces `old_str` by `new_str`, `insert` puts `insert_text` after line `insert_line`, "
    "`delete` removes `path`, `rename` moves `old_path` to `new_path`."
)
_SCREEN = (
    "Use the mouse and keyboard of a screen of {width} × {height} pixels, and take screenshots. `coordinate` is x, y "
    "from the upper left corner; `text` is what to type, or the keys to press."
)
_ACTIONS: Final = (
    *("screenshot", "left_click", "right_click", "middle_click", "double_click", "triple_click", "mouse_move"),
    *("left_click_drag", "left_mouse_down", "left_mouse_up", "type", "key", "hold_key", "scroll", "wait"),
    "cursor_position",
)
_COMMANDS: Final = ("view", "create", "str_replace", "insert")


def _function(name: str, description: str, properties: Mapping[str, Any], *required: str) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return Tool(name, description, schema)


_BASH: Final = _function(
    "bash",
    "Run a command in a bash session that stays open between calls; `restart` begins a new one.",
    {"command": _TEXT, "restart": {"type": "boolean"}},
)
_EDITOR: Final = _function("", _EDIT, {"command": {"enum": list(_COMMANDS)}, **_FILES}, "command", "path")
_MEMORIES: Final = _function(
    "memory",
    _MEMORY,
    {"command": {"enum": [*_COMMANDS, "delete", "rename"]}, **_FILES, "old_path": _TEXT, "new_path": _TEXT},
    "command",
)
_COMPUTER: Final = _function(
    "computer",
    _SCREEN,
    {
        "action": {"enum": list(_ACTIONS)},
        "coordinate": _POINT,
        "start_coordinate": _POINT,
        "text": _TEXT,
        "duration": {"type": "number"},
        "scroll_direction": {"enum": ["up", "down", "left", "right"]},
        "scroll_amount": _NUMBER,
    },
    "action",
)
# By the beginning of the type, which a date follows.
_KNOWN: Final[Mapping[str, Tool]] = {
    "bash": _BASH,
    "text_editor": _EDITOR,
    "memory": _MEMORIES,
    "computer": _COMPUTER,
}
_OF_SERVERS: Final = re.compile(r"(web_search|web_fetch|code_execution|advisor|tool_search_tool|mcp_toolset)\w*")
_DATED: Final = re.compile(r"(.+)_[0-9]{8}")


class AnthropicToolBody(Body):
    """A tool. Those of a type without a schema are run by the client, or on Anthropic's servers, and then ignored."""

    type: StrictStr | None = None
    name: StrictStr = ""
    description: StrictStr = ""
    input_schema: dict[str, Any] | None = None
    input_examples: list[Any] | None = None
    max_characters: StrictInt | None = None
    display_width_px: StrictInt | None = None
    display_height_px: StrictInt | None = None
    display_number: StrictInt | None = None
    enable_zoom: StrictBool | None = None
    allowed_callers: list[StrictStr] | None = None

    @property
    def unused(self) -> str:
        is_known = self.input_schema is not None or _OF_SERVERS.fullmatch(self.type or "") is None
        return "" if is_known else self.name or self.type or ""

    def tool(self) -> Tool | None:
        """Return the tool as a function, None for one of Anthropic's servers. Raises RequestError for one that is
        neither described nor known."""
        if self.input_schema is not None:
            examples = [json.dumps(example, ensure_ascii=False) for example in self.input_examples or ()]
            shown = "\n".join([self.description, *(["Examples of its input:", *examples] if examples else [])])
            return Tool(self.name, shown.lstrip("\n"), self.input_schema)
        if self.unused:
            return None
        dated = _DATED.fullmatch(self.type or "")
        known = _KNOWN.get(dated[1]) if dated else None
        if known is None:
            named = f"The tool {self.name[:64]!r}" + (f" of the type {self.type[:64]!r}" if self.type else "")
            raise RequestError(f"{named} has no input_schema.", "Give the schema of its input.")
        sides = {"width": self.display_width_px or "?", "height": self.display_height_px or "?"}
        description = known.description.format(**sides) if known is _COMPUTER else known.description
        return Tool(self.name or known.name, description, known.parameters)
