"""The tools of one request in any dialect, and the calls in its answer, separated from the text while both stream.

Text is held back until it is clear whether it is a call; a call of a tool that was not offered is text again, and what
an answer that was cut has begun of a call or of a tag behind one is neither. A call that was made before is left out:
its parts are held back until they differ. Reasoning is separated before.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from app.common.answer_text import partial_match_length
from app.common.schema_shape import malformed_part
from app.common.terminal import printable_line
from app.engine.grammar.call_rules import numbered
from app.protocol.chat import AnswerDelta, Tool, ToolCallDelta, joined_deltas
from app.protocol.errors import RequestError
from app.service.tools.argument_forms import ArgumentsReader, JsonArguments, JsonForm, ObjectReader, n_after_arguments
from app.service.tools.formats import EXAMPLE_ID, ToolFormat, head_text

MAX_TOOLS = 512
MAX_HEADER_CHARACTERS = 256
_NAMESPACE = re.compile(r"\Afunctions[._]")
_NUMBER = re.compile(r"[:_]\d+\Z")
_BLANKS = " \t\r\n"
_SEPARATORS = ",;]}"  # between calls in a list; models add a brace too many
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID_CHARACTERS = 9  # Mistral's templates take nine letters and digits, the others anything
_ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The `tools` of a request. With `must_call` the answer must be a call, of the tool `only` if that is given.

    `is_parallel` says whether several calls may be made, none of them twice. Where a client does not say (None), they
    may, as in OpenAI's and Anthropic's APIs. One that is named is called once, whatever `is_parallel` says, which some
    clients always send: "call exactly one specific function" (OpenAI's guide to function calling).

    Raises RequestError for an invalid name, too many tools, two of one name, malformed parameters, an unknown `only`.
    """

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    only: str = ""
    is_parallel: bool | None = None

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if invalid := next((name for name in names if not _NAME.fullmatch(name)), None):
            cause = f"The tool name {invalid[:80]!r} is invalid."  # it could not be parsed in a call
            raise RequestError(cause, "Use 1 to 64 letters, digits, underscores, dots and dashes.")
        if len(names) > MAX_TOOLS:
            raise RequestError(f"{len(names)} tools were given.", f"Give at most {MAX_TOOLS}.")
        if twice := next((name for name, count in Counter(names).items() if count > 1), ""):
            raise RequestError(f"Two tools are named {twice}.", "Give each a name of its own.")
        for tool in self.tools:
            if fault := malformed_part(tool.parameters):
                cause = f"The parameters of the tool {tool.name} are malformed: {printable_line(fault)}."
                raise RequestError(cause, "Correct the schema.")
        if self.only and self.only not in names:
            raise RequestError(f"tool_choice names {self.only[:64]!r}, which is not in tools.", "Add it to tools.")
        if self.must_call and not names:
            raise RequestError("A tool call is required and no tools were given.", "Give tools.")

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if not self.only or tool.name == self.only)

    @property
    def may_repeat(self) -> bool:
        """Whether the answer may have more than one call."""
        return not self.only and self.is_parallel is not False


NO_TOOLS = ToolOptions()


def tool_for_template(tool: Tool) -> dict[str, Any]:
    """Return a tool in the form of chat templates (source: transformers, utils/chat_template_utils.py)."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def new_call_id() -> str:
    """Return an id that every template accepts."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARACTERS))


class ToolCallParser:
    """Splits one answer of a model of `tool_format` with the tools of `options`. Calls may stand anywhere in the text,
    or only at its begin if it `is_verbatim`. Each step reads from the unread text and returns whether another step can
    follow without more text."""

    def __init__(
        self,
        tool_format: ToolFormat,
        options: ToolOptions,
        new_id: Callable[[], str] = new_call_id,
        *,
        is_verbatim: bool = False,
    ) -> None:
        self._format = tool_format
        self._is_verbatim = is_verbatim
        self._tools = {tool.name: tool for tool in options.callable_tools}
        self._may_repeat = options.may_repeat
        self._new_id = new_id
        self._unread = ""
        self._doubtful = ""  # read as the start of a call, and text if it is none
        self._is_final = False
        self._is_among_calls = False
        self._object = ObjectReader()
        self._arguments: ArgumentsReader = JsonArguments()
        self._behind_arguments = self._after_call
        self._first_step = self._begin if is_verbatim else self._plain
        self._step = self._bare if tool_format.bare else self._first_step
        self._text: list[str] = []
        self._parts: list[ToolCallDelta] = []
        self._made: list[tuple[str, str, object]] = []  # of whole calls the name, the squeezed arguments, their value
        self._name = ""  # of the call that is being read, and its arguments so far
        self._written: list[str] = []
        self._squeezed = ""  # all of these
        self._held: list[ToolCallDelta] = []  # its parts, as long as an earlier call begins with the same text
        self._must_call = options.must_call
        self.n_calls = 0

    @property
    def is_holding(self) -> bool:
        return bool(self._unread or self._doubtful or self._held)

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        """Return the text and calls that are certain after `text`; with `is_final`, all that was held back."""
        self._unread += text
        self._is_final = is_final
        while self._step():
            pass
        if is_final and self._held:
            self._end_call()
        parsed = AnswerDelta("".join(self._text), calls=joined_deltas(self._parts))
        self._text, self._parts = [], []
        return parsed

    # Text, and where a call may begin

    def _bare(self) -> bool:
        begun = self._unread.lstrip()
        if not begun and not self._is_final:
            return False
        self._step = self._header if begun and begun[0] in self._format.bare else self._first_step
        return True

    def _begin(self) -> bool:
        """Read up to where it is clear whether a call has begun, or text that is verbatim."""
        begun, openings = self._unread.lstrip(), self._format.openings
        if not self._is_final and any(tag.startswith(begun) for tag in (*openings, "")):
            return False
        self._step = self._plain if begun.startswith(openings) else self._rest
        return True

    def _rest(self) -> bool:
        self._add_text(len(self._unread))
        return False

    def _plain(self) -> bool:
        found = [(index, tag) for tag in self._format.openings if (index := self._unread.find(tag)) >= 0]
        if found:
            index, tag = min(found)
            self._add_text(len(self._unread[:index].rstrip()))
            self._doubt(self._unread.index(tag) + len(tag))
            self._step = self._header
            return True
        n_shown = len(self._unread)
        if not self._is_final:  # blanks before a call are dropped
            n_shown = len(self._unread[: n_shown - partial_match_length(self._unread, self._format.openings)].rstrip())
        elif self._must_call and self._is_cut_call(self._unread):
            self._unread, n_shown = "", 0
        self._add_text(n_shown)
        return False

    def _header(self) -> bool:
        found = self._format.header.match(self._unread[:MAX_HEADER_CHARACTERS])
        if found is None:
            is_none = self._format.is_opened_by_name and not self._is_cut_call(self._doubtful + self._unread)
            return (is_none or len(self._unread) >= MAX_HEADER_CHARACTERS or self._is_final) and self._give_up(0)
        named = found.groupdict()
        if named.get("name") is None:
            self._doubt(found.end())
            self._object, self._step = ObjectReader(is_bare=not self._doubtful.strip()), self._in_object
            return True
        return self._begin_call(found.end(), named["name"], named.get("id")) or self._give_up(0)

    def _in_object(self) -> bool:
        head = self._object.read(self._unread, is_final=self._is_final)
        if head is None:
            return False
        if not self._begin_call(head.n_characters, head.name):
            return self._give_up(head.n_characters)
        if head.arguments is not None:
            self._add_arguments(head.arguments)
            self._end_call()
            self._step = self._after_call
        return True

    def _give_up(self, n_characters: int) -> bool:
        """Turn all that seemed to be a call, and the next `n_characters`, into text, unless it is cut off within."""
        begun = self._doubtful + self._unread
        is_opened = self._must_call or self._is_among_calls or any(tag in begun for tag in self._format.openings)
        if self._is_final and is_opened and self._is_cut_call(begun):
            self._doubtful = self._unread = ""
            self._step = self._plain
            return True
        self._doubt(n_characters)
        self._text.append(self._doubtful)
        self._doubtful, self._step = "", self._rest if self._is_verbatim and not self.n_calls else self._plain
        return True

    def _is_cut_call(self, begun: str) -> bool:
        """Return whether all of `begun` is the begin of a call of one of the tools, as models write it."""
        syntax, wanted = self._format.syntax, _squeezed(begun)
        for before in {"", syntax.before_first, syntax.between or ""}:
            for head, name in product(syntax.heads, self._tools):
                text = _squeezed(numbered(f"{before}{head_text(name, *head)}", self.n_calls))
                at = text.find(EXAMPLE_ID)  # an id of this answer's own stands there
                if at >= 0:
                    end = at + len(EXAMPLE_ID)
                    text = f"{text[:at]}{wanted[at:end] or EXAMPLE_ID}{text[end:]}"
                if wanted and text.startswith(wanted):
                    return True
        return False

    def _add_text(self, n_characters: int) -> None:
        self._text.append(self._unread[:n_characters])
        self._unread = self._unread[n_characters:]

    def _doubt(self, n_characters: int) -> None:
        self._doubtful += self._unread[:n_characters]
        self._unread = self._unread[n_characters:]

    # In a call and after it

    def _begin_call(self, n_characters: int, name: str, call_id: str | None = None) -> bool:
        """Begin a call after `n_characters`. Return False, reading nothing, where `name` may not be called."""
        bare = _NAMESPACE.sub("", name)  # models write a namespace before a name, and a number behind it
        name = next((known for known in (name, bare, _NUMBER.sub("", bare)) if known in self._tools), "")
        if not name or (self.n_calls and not self._may_repeat):
            return False
        self._unread, self._doubtful = self._unread[n_characters:], ""
        self._name, self._written, self._squeezed = name, [], ""
        self._add_part(ToolCallDelta(self.n_calls, call_id or self._new_id(), name), is_first=True)
        self.n_calls += 1
        is_object = self._step == self._in_object
        form = JsonForm() if is_object else self._format.arguments
        self._arguments = form.reader(self._tools[name].parameters)
        self._behind_arguments = self._end_of_object if is_object else self._after_call
        self._is_among_calls, self._step = True, self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        more = self._arguments.push(self._unread)
        self._unread = ""
        if is_cut := self._is_final and self._arguments.rest is None:
            more += self._arguments.finish()
        self._add_arguments(more)
        if is_cut or self._arguments.rest is None:  # what is left of a call that was cut is no text
            return False
        self._end_call()
        self._unread, self._step = self._arguments.rest, self._behind_arguments
        return True

    def _add_arguments(self, text: str) -> None:
        if text:
            self._written.append(text)
            self._squeezed += _squeezed(text)
            self._add_part(ToolCallDelta(self.n_calls - 1, arguments=text))

    def _add_part(self, part: ToolCallDelta, *, is_first: bool = False) -> None:
        if not (is_first or self._held):
            self._parts.append(part)
            return
        self._held.append(part)
        if not any(name == self._name and made.startswith(self._squeezed) for name, made, _ in self._made):
            self._show()

    def _show(self) -> None:
        self._parts += self._held
        self._held = []

    def _end_call(self) -> None:
        """End the call that is being read: one that was made before is left out, and what was cut off of it."""
        value = _parsed("".join(self._written))
        if self._held:
            if value is None or any(name == self._name and made == value for name, _, made in self._made):
                self._held = []
                self.n_calls -= 1
                return
            self._show()
        self._made.append((self._name, self._squeezed, value))

    def _end_of_object(self) -> bool:
        n_read = n_after_arguments(self._unread, is_final=self._is_final)
        if n_read is None:
            return False
        self._unread, self._step = self._unread[n_read:], self._after_call
        return True

    def _after_call(self) -> bool:
        unread = self._unread = self._unread.lstrip(_BLANKS)
        fillers, openings = self._format.fillers, self._format.openings
        if tag := next((tag for tag in fillers if unread.startswith(tag)), ""):
            self._unread, self._is_among_calls = unread.removeprefix(tag), False
            return True
        if any(tag.startswith(unread) for tag in (*fillers, *openings, "")):
            if self._is_final:  # a tag behind a call is none of the text, however much of it was written
                self._unread = ""
            return False
        if self._is_among_calls and unread[:1] in _SEPARATORS and unread and not unread.startswith(openings):
            self._unread = unread[1:]
            return True
        is_listed = self._is_among_calls and self._format.listed.match(unread)
        self._step = self._header if is_listed else self._plain
        return True


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _parsed(arguments: str) -> object:
    """Return the value of `arguments`, None where they are no JSON: they may be cut."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """The tool calls of one request: the model's format and the client's options."""

    tool_format: ToolFormat
    options: ToolOptions
