"""What an editor decides about calls: the modes of a session, and the options of a permission request.

A mode is a decision of the person, made before the call: it allows what the built-in tools do in the session's folders,
never what a server of others does, and a refusal of the chat's rules counts before it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from acp.schema import DeniedOutcome, PermissionOption, RequestPermissionResponse, SessionMode, SessionModeState

from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.display import decision_text
from app.tools.tool import Effect
from quantizer.system.errors import UsageError

_Kind: TypeAlias = Literal["allow_once", "allow_always", "reject_once", "reject_always"]

_IN_FOLDERS = ("files", "commands")  # the built-in servers whose calls stay in, or begin in, the folders of a chat
_KINDS: dict[Decision, _Kind] = {
    Decision.ONCE: "allow_once",
    Decision.TOOL: "allow_always",
    Decision.BEGINNING: "allow_always",
    Decision.SERVER: "allow_always",
    Decision.DENY: "reject_once",
    Decision.NEVER: "reject_always",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """What needs no question: calls of tools whose effect is one of `unasked`."""

    id: str
    name: str
    description: str
    unasked: frozenset[Effect]


MODES = (
    Mode("ask", "Ask", "Reads in the folder; asks before it changes a file or runs a command.", frozenset()),
    Mode(
        "edit",
        "Edit",
        "Reads and changes files in the folder; asks before it runs a command.",
        frozenset({Effect.READ, Effect.WRITE}),
    ),
    Mode(
        "auto",
        "Auto",
        "Also runs commands in the folder, with all your rights; asks before it uses the network or an MCP server.",
        frozenset({Effect.READ, Effect.WRITE, Effect.RUN}),
    ),
)


def mode_of(mode_id: str) -> Mode:
    """Return a mode. Raises UsageError for an unknown id."""
    found = next((mode for mode in MODES if mode.id == mode_id), None)
    if found is None:
        raise UsageError(f"There is no mode {mode_id[:40]!r}.", f"Modes: {', '.join(mode.id for mode in MODES)}.")
    return found


def mode_state(current: Mode) -> SessionModeState:
    modes = [SessionMode(id=mode.id, name=mode.name, description=mode.description) for mode in MODES]
    return SessionModeState(current_mode_id=current.id, available_modes=modes)


def is_unasked(mode: Mode, question: ApprovalQuestion, folders: Sequence[Path]) -> bool:
    """Return whether a mode allows a call: of a tool of localllm that reads, writes or runs in one of `folders`, the
    first of which is where relative paths begin. A chat may have other folders, which its editor has not open."""
    tool, command = question.tool, question.preview.command
    if tool.server not in _IN_FOLDERS or tool.effect not in mode.unasked:
        return False
    if command is not None:
        place = Path(command.folder)
    else:
        arguments = ToolCall("", tool.name, question.arguments).arguments_object()
        path = "" if arguments is None else arguments.get("path", ".")
        if not isinstance(path, str) or not path:
            return False
        place = Path(os.path.realpath(folders[0] / path))
    return any(place.is_relative_to(folder) for folder in folders)


def permission_options(question: ApprovalQuestion) -> list[PermissionOption]:
    return [
        PermissionOption(option_id=each.value, name=_name(each, question), kind=_KINDS[each])
        for each in question.decisions
    ]


def _name(decision: Decision, question: ApprovalQuestion) -> str:
    text = decision_text(decision, question)
    return f"Always: {text}" if _KINDS[decision] == "allow_always" else text.capitalize()


def decision_of(answer: RequestPermissionResponse, question: ApprovalQuestion) -> Decision | None:
    """Return what the person chose, None where they chose nothing; what was not offered is a no."""
    if isinstance(answer.outcome, DeniedOutcome):
        return None
    chosen = answer.outcome.option_id
    return next((each for each in question.decisions if each.value == chosen), Decision.DENY)
