"""The tools of /v1/responses that a client runs: how a model is offered them, and their calls and results as items.

A model knows functions only. Custom tools, groups of functions (`namespace`), and the tools whose schema OpenAI's
models know by heart (`shell`, `local_shell`, `apply_patch`, `tool_search` with `execution: client`) are offered as
functions, and answered in their own type of item. Source: the types of openai 3.57.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NotRequired, TypeAlias, get_args

from pydantic import StrictStr
from typing_extensions import TypedDict

from app.protocol.chat import Tool
from app.protocol.errors import RequestError
from app.service.api.fields import Body, RawBody
from app.service.api.messages import arguments_so_far

CallKind = Literal[
    "function_call", "custom_tool_call", "shell_call", "local_shell_call", "apply_patch_call", "tool_search_call"
]
CALL_KINDS: Final[tuple[str, ...]] = get_args(CallKind)
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]

_INPUT = "input"
_MOST_LETTERS = 64  # of a name that a model calls
_LIMITS: Final[Mapping[str, Any]] = {"timeout_ms": {"type": "integer"}, "max_output_length": {"type": "integer"}}
_PATCH = (
    "Create, update or delete one file. `diff` has the lines of a new file, each after `+`, or the changes of an old "
    "one: sections that begin with `@@`, in which a line begins with a blank where it stays, with `-` where it goes "
    "and with `+` where it is new. To delete a file, leave it out."
)


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as the model is offered it; in items it has `name`, and the `namespace` of its group."""

    kind: CallKind
    tool: Tool
    name: str
    namespace: str = ""
    notice: str = ""  # of what of it is not enforced


def qualified(namespace: str | None, name: str) -> str:
    """Return the name by which a model calls a tool of a group: two groups may have tools of one name."""
    if not namespace:
        return name
    joined = f"{namespace.rstrip('_')}__{name}"
    if len(joined) <= _MOST_LETTERS:
        return joined
    digest = hashlib.blake2b(joined.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{joined[: _MOST_LETTERS - len(digest) - 1]}_{digest}"


def _schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_BUILT_IN: Final[Mapping[str, Tool]] = {
    "shell": Tool(
        "shell",
        "Run commands in a shell, one after the other, and get their output.",
        _schema({"commands": _TEXTS, **_LIMITS}, "commands"),
    ),
    "local_shell": Tool(
        "local_shell",
        "Run one command, given as a list of its arguments, and get its output.",
        _schema(
            {"command": _TEXTS, "working_directory": {"type": "string"}, "timeout_ms": _LIMITS["timeout_ms"]}, "command"
        ),
    ),
    "apply_patch": Tool(
        "apply_patch",
        _PATCH,
        _schema(
            {
                "type": {"enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {"type": "string"},
            },
            "type",
            "path",
        ),
    ),
}
_SEARCH: Final = Tool("tool_search", "Find tools for a task; those that are found can be called next.")
_ANY_QUERY: Final = _schema({"query": {"type": "string"}}, "query")
_UNKNOWN = ("computer", "computer_use_preview")  # run by a client, from screenshots of a screen that only it knows


class CustomFormat(Body):
    """The form of a custom tool's input: any text, or one of a grammar."""

    type: StrictStr = "text"
    syntax: StrictStr = ""
    definition: StrictStr = ""


class Skill(Body):
    """What a client's shell can do more."""

    name: StrictStr = ""
    description: StrictStr = ""
    path: StrictStr = ""


class ShellEnvironment(Body):
    """Where the commands of a shell run: `local` is the client's machine, the others are OpenAI's."""

    type: StrictStr = "local"
    skills: list[Skill] | None = None


class ResponsesToolBody(RawBody):
    """A tool that the client runs, or a group of those. Others run on OpenAI's servers and have no effect."""

    type: StrictStr
    name: StrictStr = ""
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    format: CustomFormat | None = None
    tools: list[ResponsesToolBody] | None = None
    environment: ShellEnvironment | None = None
    execution: StrictStr | None = None
    allowed_callers: list[StrictStr] | None = None

    @property
    def unused(self) -> str:
        return "" if self._runs_at_client else self.type

    @property
    def _runs_at_client(self) -> bool:
        if self.type == "shell":
            return self.environment is None or self.environment.type == "local"
        if self.type == "tool_search":
            return self.execution == "client"
        return self.type in ("function", "custom", "namespace", *_BUILT_IN, *_UNKNOWN)

    def offered(self, namespace: str = "", about: str = "") -> Iterator[Offered]:
        """Yield what the model is offered, nothing for a tool of OpenAI's servers. The first tool of a group says what
        that is `about`. Raises RequestError for a tool that no model here knows."""
        if self.type in _UNKNOWN:
            cause = f"The tool {self.type} needs a model that was made for it."
            raise RequestError(cause, "Leave it out, or describe what it does as functions.")
        if self.type == "namespace":
            if not self.name:
                raise RequestError("A namespace of tools has no name.", "Name it.")
            abouts = iter([self.description or ""])
            for tool in self.tools or ():
                yield from tool.offered(self.name, next(abouts, ""))
        elif self.type in ("function", "custom"):
            yield self._named(namespace, about)
        elif self._runs_at_client and self.type == "tool_search":
            found = Tool(_SEARCH.name, self.description or _SEARCH.description, self.parameters or _ANY_QUERY)
            yield Offered("tool_search_call", found, found.name)
        elif self._runs_at_client:
            known = _BUILT_IN[self.type]
            skills = [f"- {skill.name}: {skill.description} ({skill.path})" for skill in self._skills]
            description = "\n".join([known.description, *(["Skills:", *skills] if skills else [])])
            yield Offered(_kind(self.type), replace(known, description=description), known.name)

    @property
    def _skills(self) -> list[Skill]:
        return (self.environment.skills if self.environment else None) or []

    def _named(self, namespace: str, about: str) -> Offered:
        name = qualified(namespace, self.name)
        description, parameters, notice = self.description or "", self.parameters or {}, ""
        if self.type == "custom":
            form = self.format or CustomFormat()
            if form.definition:
                described = f"The input has this form ({form.syntax}):\n{form.definition}"
                description = "\n\n".join(filter(None, (description, described)))
            is_regular = form.syntax == "regex" and bool(form.definition)
            text = {"type": "string", **({"pattern": f"^({form.definition})$"} if is_regular else {})}
            parameters = _schema({_INPUT: text}, _INPUT)
            if form.definition and not is_regular:
                notice = f"The model reads the grammar ({form.syntax}) of {self.name}'s input, which is not enforced."
        description = "\n\n".join(filter(None, (about, description)))
        kind: CallKind = "custom_tool_call" if self.type == "custom" else "function_call"
        return Offered(kind, Tool(name, description, parameters), self.name, namespace, notice)


def _kind(tool_type: str) -> CallKind:
    kinds: Mapping[str, CallKind] = {"shell": "shell_call", "local_shell": "local_shell_call"}
    return kinds.get(tool_type, "apply_patch_call")


class NamedTool(Body):
    """A tool in a choice: by its name, or by its type where that has only one."""

    type: StrictStr = "function"
    name: StrictStr = ""
    namespace: StrictStr | None = None

    def fits(self, offered: Offered) -> bool:
        if self.type == "namespace":
            return offered.namespace == self.name
        if self.type in ("function", "custom"):
            is_kind = offered.kind == ("custom_tool_call" if self.type == "custom" else "function_call")
            is_group = self.namespace is None or offered.namespace == self.namespace
            return is_kind and is_group and self.name in (offered.name, offered.tool.name)
        return offered.kind == f"{self.type}_call"


def all_offered(tools: Iterable[ResponsesToolBody], found: Iterable[ResponsesToolBody] = ()) -> list[Offered]:
    """Return what the model is offered of `tools`, and of those that were `found` since, each once."""
    offered = [one for tool in tools for one in tool.offered()]
    names = {one.tool.name for one in offered}
    for one in (one for tool in found for one in tool.offered()):
        if one.tool.name not in names:
            names.add(one.tool.name)
            offered.append(one)
    return offered


class FunctionCallItem(TypedDict):
    """A tool call; `arguments` are JSON in a text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str


class CustomCallItem(TypedDict):
    """The call of a custom tool, whose `input` is a text."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str


class ShellAction(TypedDict):
    commands: list[str]
    timeout_ms: int | None
    max_output_length: int | None


class LocalEnvironment(TypedDict):
    type: Literal["local"]


class ShellCallItem(TypedDict):
    """Commands for the client's shell; none where the call was cut."""

    id: str
    type: Literal["shell_call"]
    status: ItemStatus
    call_id: str
    action: ShellAction
    environment: LocalEnvironment


class LocalShellAction(TypedDict):
    type: Literal["exec"]
    command: list[str]
    env: dict[str, str]
    timeout_ms: int | None
    user: None
    working_directory: str | None


class LocalShellCallItem(TypedDict):
    """A command for the client's machine; empty where the call was cut."""

    id: str
    type: Literal["local_shell_call"]
    status: ItemStatus
    call_id: str
    action: LocalShellAction


class PatchOperation(TypedDict):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: NotRequired[str]


class PatchCallItem(TypedDict):
    """A change of a file; without a path where the call was cut."""

    id: str
    type: Literal["apply_patch_call"]
    status: Literal["in_progress", "completed"]
    call_id: str
    operation: PatchOperation


class SearchCallItem(TypedDict):
    """A search for tools among those that the client has."""

    id: str
    type: Literal["tool_search_call"]
    status: ItemStatus
    call_id: str
    execution: Literal["client"]
    arguments: dict[str, Any]


CallItem: TypeAlias = (
    FunctionCallItem | CustomCallItem | ShellCallItem | LocalShellCallItem | PatchCallItem | SearchCallItem
)


def call_fields(offered: Offered, arguments: str, status: ItemStatus) -> dict[str, Any]:
    """Return the fields of a call's item that depend on its kind. What a client would run has nothing of a call whose
    arguments are not whole."""
    named = {"name": offered.name, **({"namespace": offered.namespace} if offered.namespace else {})}
    if offered.kind == "function_call":
        return {**named, "arguments": arguments}
    if offered.kind == "custom_tool_call":
        return {**named, "input": custom_input(arguments)}
    whole = _whole(arguments)
    if offered.kind == "shell_call":
        limits = {name: _integer(whole.get(name)) for name in _LIMITS}
        action = {"commands": _strings(whole.get("commands")), **limits}
        return {"action": action, "environment": {"type": "local"}}
    if offered.kind == "local_shell_call":
        folder = whole.get("working_directory")
        return {
            "action": {
                "type": "exec",
                "command": _strings(whole.get("command")),
                "env": {},
                "timeout_ms": _integer(whole.get("timeout_ms")),
                "user": None,
                "working_directory": folder if isinstance(folder, str) else None,
            }
        }
    if offered.kind == "apply_patch_call":
        kind = whole.get("type")
        operation = {"type": kind if isinstance(kind, str) else "update_file", "path": str(whole.get("path") or "")}
        if operation["type"] != "delete_file":
            operation["diff"] = str(whole.get("diff") or "")
        return {"operation": operation, "status": "completed" if status == "completed" else "in_progress"}
    return {"execution": "client", "arguments": whole}


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool in the arguments of its call, as far as it came. Arguments of another form are
    returned as they are."""
    value = arguments_so_far(arguments, cuts_texts=True)
    text = value.get(_INPUT, "" if not value and not arguments.rstrip().endswith("}") else None)
    return text if isinstance(text, str) else arguments


def _whole(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _strings(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


# What a call that comes back says as arguments of a function, by its kind.
CALL_ARGUMENTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "custom_tool_call": lambda item: {_INPUT: item.get("input") or ""},
    "shell_call": lambda item: _given(item.get("action"), "commands", *_LIMITS),
    "local_shell_call": lambda item: _given(item.get("action"), "command", "working_directory", "timeout_ms"),
    "apply_patch_call": lambda item: _given(item.get("operation"), "type", "path", "diff"),
    "tool_search_call": lambda item: item.get("arguments") or {},
}


def _given(value: Any, *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if value.get(name) is not None} if isinstance(value, dict) else {}


def result_text(kind: str, item: Mapping[str, Any]) -> str:
    """Return what the model reads of a result that is neither a text nor parts of content."""
    if kind == "shell_call_output":
        return json.dumps(item.get("output") or [], ensure_ascii=False)
    if kind == "apply_patch_call_output":
        return str(item.get("output") or f"The patch has {item.get('status') or 'completed'}.")
    found = [one.get("name") for one in item.get("tools") or () if isinstance(one, dict)]
    return f"Found: {', '.join(str(name) for name in found) or 'no tool'}."
