"""A chat as the protocol's updates: texts, thoughts, calls of tools with their files and diffs, and a chat's history.

Pure. Texts of models and tools are cleaned before they come here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AudioContentBlock,
    ContentToolCallContent,
    FileEditToolCallContent,
    ImageContentBlock,
    TerminalToolCallContent,
    TextContentBlock,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    UserMessageChunk,
)

from app.chat.attachments.parsing import fenced
from app.chat.attachments.prompt import media_of
from app.chat.branches import LiveCall, TranscriptEntry
from app.chat.conversation import MessageContent, arguments_of
from app.common.terminal import printable
from app.protocol.chat import MediaPart, ToolCall
from app.tools.approval import ApprovalQuestion
from app.tools.display import call_title, progress_text, question_lines, result_text
from app.tools.tool import ToolOutcome, ToolResult

Update: TypeAlias = AgentMessageChunk | AgentThoughtChunk | UserMessageChunk | ToolCallStart | ToolCallProgress
_CallContent: TypeAlias = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
_Kind: TypeAlias = Literal["read", "edit", "search", "execute", "fetch", "other"]

# Of built-in tools, by the names that models call them; a tool of another server has its server's name before its own.
_KINDS: Mapping[str, _Kind] = {
    "read_file": "read",
    "read_skill": "read",
    "list_folder": "search",
    "search_text": "search",
    "search_knowledge": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "run_command": "execute",
    "fetch_url": "fetch",
    "search_web": "search",
}
_PART = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NO_FILE, _HEADINGS = "--- /dev/null", ("--- ", "+++ ")
_MAX_DEPTH = 64  # of arguments: the package sends 255, and serde_json, with which editors read, takes 128
_MAX_LINE = 2**31 - 1
_MAX_MEDIA_CHARACTERS = 4 << 20  # of Base64 in an update: toad reads lines of 10 MiB
_NO_PARTS: Mapping[str, MediaPart] = {}


def said(text: str) -> AgentMessageChunk:
    return AgentMessageChunk(session_update="agent_message_chunk", content=_text(text))


def thought(text: str) -> AgentThoughtChunk:
    return AgentThoughtChunk(session_update="agent_thought_chunk", content=_text(text))


def asked(text: str) -> UserMessageChunk:
    return UserMessageChunk(session_update="user_message_chunk", content=_text(text))


def history(
    entries: Iterable[TranscriptEntry], folder: Path, parts: Mapping[str, MediaPart] = _NO_PARTS
) -> Iterator[Update]:
    """Yield a chat as it was held, for an editor that opens it again; `parts` are pictures and sounds of results."""
    for entry in entries:
        message = entry.message
        if message.role == "user":
            yield asked(question_text(message))
        elif message.role == "tool":
            yield call_started(entry, folder, parts, is_running=False)
        elif message.role == "summary":
            yield thought(f"Summary of the {entry.n_summarised} messages before:\n{printable(message.content)}")
        else:
            if message.reasoning:
                yield thought(printable(message.reasoning))
            if message.content:
                yield said(printable(message.content))


def question_text(question: MessageContent) -> str:
    """Return a question with the names of what is attached to it."""
    labels = [f"[{printable(each.label)}]" for each in question.attachments]
    return "\n".join(filter(None, (*labels, printable(question.content))))


# Calls of tools


def call_id(message_id: int) -> str:
    """Return the id of a call: that of its message, since models use theirs again in the next answer."""
    return f"call-{message_id}"


def call_started(
    entry: TranscriptEntry, folder: Path, parts: Mapping[str, MediaPart] = _NO_PARTS, *, is_running: bool = True
) -> ToolCallStart:
    """Return a call that begins, or as it ended long ago. Paths of its arguments are relative to `folder`; `parts` are
    pictures and sounds by their SHA-256, of which those of the result are shown."""
    result = _result_of(entry)
    return ToolCallStart(
        session_update="tool_call",
        raw_input=_raw_input(entry.call),
        kind=_KINDS.get(result.tool, "other"),
        **_state(entry, folder, parts, is_running=is_running),
    )


def call_changed(
    entry: TranscriptEntry, folder: Path, parts: Mapping[str, MediaPart] = _NO_PARTS, terminal_id: str = ""
) -> ToolCallProgress:
    """Return how a call goes on, or that it has ended. The terminal of the editor in which its command runs shows what
    that prints."""
    is_running = _result_of(entry).outcome is ToolOutcome.RUNNING
    state = _state(entry, folder, parts, terminal_id, is_running=is_running)
    return ToolCallProgress(session_update="tool_call_update", **state)


def call_asked(entry: TranscriptEntry, question: ApprovalQuestion, folder: Path) -> ToolCallUpdate:
    """Return a call with all that the person needs to decide about it: the risk, and what it would do."""
    is_diff = question.preview.kind == "diff"
    diffs, notes = read_diff(question.preview.text, _path(entry, folder)) if is_diff else ((), ())
    lines = [line.text for line in question_lines(question)]
    # Of a write its risk, and what its diff does not say: that it cannot be undone, that more lines are not shown.
    text = "\n".join([*lines[: 1 + bool(question.note)], *notes] if diffs else lines)
    return ToolCallUpdate(
        tool_call_id=call_id(entry.message.id),
        status="pending",
        kind=_KINDS.get(question.tool.definition.name, "other"),
        title=printable(question.preview.title),
        content=[_content(fenced(text)), *diffs],
        locations=_locations(entry, folder),
        raw_input=_raw_input(entry.call),
    )


def _raw_input(call: ToolCall | None) -> Mapping[str, Any] | str | None:
    """Return the arguments of a call by name; as a text where a model wrote no object, or one that is nested too deep
    to be sent."""
    arguments = None if call is None else arguments_of(call)
    level: list[Any] = [] if arguments is None else [arguments]
    for _ in range(_MAX_DEPTH):  # no recursion: what a model writes may be deeper than our stack
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for children in inside for child in children if isinstance(child, dict | list)]
    is_sent = arguments is not None and not level
    return arguments if is_sent or call is None else printable(call.arguments)


def _state(
    entry: TranscriptEntry,
    folder: Path,
    parts: Mapping[str, MediaPart],
    terminal_id: str = "",
    *,
    is_running: bool,
) -> dict[str, Any]:
    result, live = _result_of(entry), entry.live
    terminal = [TerminalToolCallContent(type="terminal", terminal_id=terminal_id)] if terminal_id else []
    is_done = result.outcome is ToolOutcome.DONE
    diffs, _ = read_diff(result.diff, _path(entry, folder))
    if is_running:
        status, content = "in_progress", [*diffs, *terminal, *_live_contents(live)]
    else:
        # What was read or printed; of a write that was made the diff says all.
        output = () if (is_done and diffs) or terminal else _output(entry.message.content)
        how = () if is_done else (_content(result_text(result, is_running=False)),)
        content = [*diffs, *how, *terminal, *output, *_media_contents(entry.message, parts)]
        status = "completed" if is_done else "failed"
    return {
        "tool_call_id": call_id(entry.message.id),
        "title": call_title(result),
        "status": status,
        "content": content,
        "locations": _locations(entry, folder),
    }


def _media_contents(message: MessageContent, parts: Mapping[str, MediaPart]) -> Iterator[_CallContent]:
    n_characters = 0
    for file in media_of(message.attachments):
        part = parts.get(file.sha256)
        n_characters += len(part.base64) if part is not None else 0
        if part is not None and n_characters <= _MAX_MEDIA_CHARACTERS:
            block = (
                AudioContentBlock(type="audio", data=part.base64, mime_type=part.mime_type)
                if part.is_sound
                else ImageContentBlock(type="image", data=part.base64, mime_type=part.mime_type)
            )
            yield ContentToolCallContent(type="content", content=block)


def _live_contents(live: LiveCall | None) -> Iterator[_CallContent]:
    if live is not None and live.progress is not None:
        yield _content(progress_text(live.progress))
    if live is not None and live.output.strip():
        yield _content(fenced(printable(live.output)))


def _output(text: str) -> tuple[_CallContent, ...]:
    return (_content(fenced(printable(text))),) if text.strip() else ()


def _result_of(entry: TranscriptEntry) -> ToolResult:
    assert entry.message.result is not None, "the message of a call has its result from the first moment"
    return entry.message.result


def _path(entry: TranscriptEntry, folder: Path) -> str:
    """Return the absolute path of the file that a call is about, "" where it names none."""
    changes = _result_of(entry).changes
    if changes:
        return changes[-1].path
    arguments = (arguments_of(entry.call) if entry.call is not None else None) or {}
    path = arguments.get("path")
    return str(folder / path) if isinstance(path, str) and path and "\0" not in path else ""


def _locations(entry: TranscriptEntry, folder: Path) -> list[ToolCallLocation]:
    path = _path(entry, folder)
    arguments = (arguments_of(entry.call) if entry.call is not None else None) or {}
    first = arguments.get("first_line")
    is_line = isinstance(first, int) and not isinstance(first, bool) and 0 < first <= _MAX_LINE
    changed = _PART.search(_result_of(entry).diff)
    line = first if is_line else int(changed[2]) if changed else None
    return [ToolCallLocation(path=path, line=line)] if path else []


def read_diff(text: str, path: str) -> tuple[tuple[FileEditToolCallContent, ...], tuple[str, ...]]:
    """Return the whole parts of a unified diff of the file at `path`, each as the lines before and after it, and the
    lines that are in none of them, without headings; all of these are safe to show. Without a `path` there are no
    parts."""
    lines = printable(text).split("\n")
    parts, notes = list[FileEditToolCallContent](), list[str]()
    index, is_new = 0, _NO_FILE in lines
    while index < len(lines):
        part = _PART.match(lines[index]) if path else None
        end = index + 1
        old, new = list[str](), list[str]()
        n_old, n_new = (int(part[1] or 1), int(part[3] or 1)) if part is not None else (0, 0)
        while end < len(lines) and (n_old > len(old) or n_new > len(new) or lines[end].startswith("\\")):
            sign, line = lines[end][:1], lines[end][1:]
            if part is None or sign not in ("+", "-", " ", "\\"):
                break
            old += [line] if sign in (" ", "-") else []
            new += [line] if sign in (" ", "+") else []
            end += 1
        if part is not None and len(old) >= n_old and len(new) >= n_new:
            former = None if is_new else "\n".join(old)
            parts.append(FileEditToolCallContent(type="diff", path=path, old_text=former, new_text="\n".join(new)))
        else:
            notes += [line for line in lines[index:end] if not line.startswith(_HEADINGS)]
        index = end
    return tuple(parts), tuple(filter(None, notes))


def _content(text: str) -> ContentToolCallContent:
    return ContentToolCallContent(type="content", content=_text(text))


def _text(text: str) -> TextContentBlock:
    return TextContentBlock(type="text", text=text)
