"""Calls of tools as text: the question before one, its line in the transcript, diffs and outputs. Pure.

Everything from a model, a tool or a file leaves here without control characters. Each kind of line also shows without
colours; what it looks like is the display's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from app.common.terminal import printable, printable_line, quoted_command, quoted_name
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.tool import Effect, ToolOutcome, ToolProgress, ToolResult
from quantizer.figures import format_number

LineKind = Literal["plain", "prose", "added", "removed", "place", "heading"]

_TAB_CELLS = 4
_FILES = ("--- ", "+++ ")
_PART = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_DIFF_SIGNS: dict[str, LineKind] = {"+": "added", "-": "removed"}


@dataclass(frozen=True, slots=True)
class StyledLine:
    """A line without control characters. `kind` "place" says where in a file a part of a diff is; "prose" is for
    people, and best broken between its words."""

    text: str
    kind: LineKind = "plain"


def plain_lines(text: str, kind: LineKind = "plain") -> tuple[StyledLine, ...]:
    """Return the lines of an untrusted text."""
    return tuple(StyledLine(line.expandtabs(_TAB_CELLS), kind) for line in printable(text).split("\n"))


def diff_lines(text: str) -> tuple[StyledLine, ...]:
    """Return the lines of an untrusted text, of which those of a unified diff have their kinds. Within a part of a diff
    the first character of a line alone decides, for as many lines as the part says that it has: a removed `-- a` above
    an added `++ b` is no heading."""
    found: list[StyledLine] = []
    lines = text.split("\n")
    n_old = n_new = 0  # lines of the present part that are still to come
    for number, line in enumerate(lines):
        is_header = line.startswith(_FILES[0]) and number + 1 < len(lines) and lines[number + 1].startswith(_FILES[1])
        ends_header = line.startswith(_FILES[1]) and number > 0 and lines[number - 1].startswith(_FILES[0])
        kind: LineKind = "plain"
        if n_old > 0 or n_new > 0:
            kind = _DIFF_SIGNS.get(line[:1], "plain")
            is_marker = line.startswith("\\")  # "No newline at end of file"
            n_old -= kind != "added" and not is_marker
            n_new -= kind != "removed" and not is_marker
        elif is_header or ends_header:
            kind = "heading"
        elif (part := _PART.match(line)) is not None:
            kind, (n_old, n_new) = "place", (int(each or 1) for each in part.groups())
        found += plain_lines(line, kind)
    return tuple(found)


# One for each decision; "y" and "n" as everywhere.
KEYS: dict[str, Decision] = {
    "y": Decision.ONCE,
    "t": Decision.TOOL,
    "b": Decision.BEGINNING,
    "s": Decision.SERVER,
    "n": Decision.DENY,
    "x": Decision.NEVER,
}
ARGUMENTS, _OUTPUT = "arguments", "result"
_SIGNS_AND_WORDS = {
    ToolOutcome.RUNNING: ("…", ""),
    ToolOutcome.DONE: ("✓", ""),
    ToolOutcome.FAILED: ("✗", "failed"),
    ToolOutcome.DENIED: ("⊘", "denied"),
    ToolOutcome.CANCELLED: ("■", "cancelled"),
    ToolOutcome.TIMED_OUT: ("✗", "timed out"),
}
_CUT_OFF = ("?", "cut off: what it did is not known")
_RISKS = {
    Effect.READ: "Reads in the folders of this chat",
    Effect.WRITE: "Changes files in the folders of this chat",
    Effect.RUN: "Runs with all your rights",
    Effect.FETCH: "Sends a request to the network",
    Effect.UNKNOWN: "What it does is known to its server only",
}
_REQUEST_RISKS = {"form": "The server gets what you answer", "sampling": "The server gets what the model answers"}
_SEPARATOR = " · "
_LEAST_S = 0.1  # a duration that is worth its place
_PREFIX_CHARACTERS = 44


# The question


def question_title(question: ApprovalQuestion) -> str:
    tool = question.tool
    return f"Allow {printable_line(question.preview.title) or printable_line(tool.title or tool.name)}?"


def question_lines(question: ApprovalQuestion, *, is_folded: bool = False) -> tuple[StyledLine, ...]:
    """Return the risk in words and who asks, what would happen, and the arguments: a line about them if they are
    `is_folded` and a diff says the same."""
    tool, preview = question.tool, question.preview
    who = f"{printable_line(tool.server)}: {printable_line(tool.name)}"
    heading = (
        StyledLine(f"{risk_text(question)} {_SEPARATOR.strip()} {who}", "heading"),
        *([StyledLine(printable_line(question.note), "place")] if question.note else []),
    )
    arguments = plain_lines(_indented(question.arguments))
    if preview.kind == "arguments":
        return *heading, *arguments
    text = preview.text.rstrip("\n")
    if preview.kind in _REQUEST_RISKS:
        return *heading, *plain_lines(text, "prose")
    shown = diff_lines(text) if preview.kind == "diff" else plain_lines(text)
    if is_folded and preview.kind == "diff":
        return *heading, *shown, StyledLine(f"▸ {ARGUMENTS}: O shows them", "place")
    return *heading, *shown, StyledLine(f"{ARGUMENTS}:", "heading"), *arguments


def risk_text(question: ApprovalQuestion) -> str:
    """Return what the call may do at most, in words."""
    if question.preview.kind in _REQUEST_RISKS:
        return _REQUEST_RISKS[question.preview.kind]
    if question.preview.kind != "diff":
        return _RISKS[question.tool.effect]
    kinds = [line.kind for line in diff_lines(question.preview.text)]
    counts = ((kinds.count("added"), "adds"), (kinds.count("removed"), "removes"))
    parts = [f"{verb} {n} line{'' if n == 1 else 's'}" for n, verb in counts if n]
    return " and ".join(parts).capitalize() or _RISKS[question.tool.effect]


def decision_text(decision: Decision, question: ApprovalQuestion) -> str:
    """Return what a decision means for this call."""
    command = question.preview.command
    if question.preview.kind in _REQUEST_RISKS and decision is Decision.TOOL:
        return f"always for {printable_line(question.tool.server)} in this chat"
    shown = quoted_command(command.argv) if command is not None else ""
    if len(shown) > _PREFIX_CHARACTERS:  # the command itself has been shown
        shown = "this"
    return {
        Decision.TOOL: f"{printable_line(question.tool.name)} in this chat" if command is None else "exactly this",
        Decision.BEGINNING: f"{shown} with any further arguments",
        Decision.ONCE: "allow once",
        Decision.SERVER: f"all of {printable_line(question.tool.server)}",
        Decision.DENY: "deny",
        Decision.NEVER: "never",
    }[decision]


# A call in the transcript


def call_title(result: ToolResult) -> str:
    return printable_line(result.title) or f"{printable_line(result.server)}: {printable_line(result.tool)}".strip(": ")


def result_text(result: ToolResult, *, is_running: bool) -> str:
    """Return a call in a line: its outcome, what it did and how that went."""
    is_cut_off = result.outcome is ToolOutcome.RUNNING and not is_running
    sign, words = _CUT_OFF if is_cut_off else _SIGNS_AND_WORDS[result.outcome]
    duration = f"{result.duration_s:.1f} s" if result.duration_s >= _LEAST_S else ""
    parts = (call_title(result), words, printable_line(result.detail), duration, "undone" if result.is_undone else "")
    return f"{sign} {_SEPARATOR.join(filter(None, parts))}"


def progress_text(progress: ToolProgress | None) -> str:
    """Return how far a running call is, in a line."""
    if progress is None:
        return "running"
    message, done, total = printable_line(progress.message), progress.done, progress.total
    if done is None:
        return message or "running"
    share = f"{min(max(done / total, 0.0), 1.0):.0%}" if total else format_number(done)
    return _SEPARATOR.join(filter(None, (share, message)))


def call_lines(arguments: str, content: str, result: ToolResult) -> tuple[StyledLine, ...]:
    """Return the arguments of a call, the files that it changed, and the text that the model reads. A write begins with
    its diff, and its arguments, which hold the whole of what it writes, come last."""
    changed = tuple(StyledLine(f"changed {quoted_name(change.path)}") for change in result.changes)
    given = (StyledLine(f"{ARGUMENTS}:", "heading"), *plain_lines(_indented(arguments))) if arguments.strip() else ()
    text, diff = content.rstrip("\n"), result.diff.rstrip("\n")
    returned = (StyledLine(f"{_OUTPUT}:", "heading"), *diff_lines(text)) if text else ()
    if diff:
        return *changed, *diff_lines(diff), *returned, *given
    return *given, *changed, *returned


def _indented(arguments: str) -> str:
    """Return JSON with a line for each value, any other text as it is. Line breaks in a value stay visible as text."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return printable(arguments)
    return json.dumps(value, indent=2, ensure_ascii=False)
