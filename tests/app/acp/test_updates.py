"""Diffs and questions as an editor shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.acp.modes import MODES, decision_of, is_unasked, mode_of, permission_options
from app.acp.updates import call_changed, call_started, read_diff
from app.chat.branches import TranscriptEntry
from app.chat.conversation import Attachment, MediaFile, Message
from app.cli.verbs.acp import acp
from app.protocol.chat import MediaPart, ToolCall
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.builtin.edits import diff_of
from app.tools.tool import BoundCommand, Effect, Preview, ToolOutcome, ToolResult
from tests.app.tools.fake import fake_tool

PATH = "/project/a.txt"
KINDS = ("image/png", "audio/wav", "image/png")


def _shown(before: str, after: str) -> str:
    return f"--- a.txt\n+++ a.txt\n{diff_of(before, after).text}"


def test_each_part_of_a_diff_has_the_lines_before_and_after():
    lines = [str(number) for number in range(30)]
    changed = [*lines]
    changed[2], changed[25] = "two", "twenty-five"
    parts, notes = read_diff(_shown("\n".join(lines) + "\n", "\n".join(changed) + "\n"), PATH)
    assert notes == ()
    assert [part.path for part in parts] == [PATH, PATH]
    assert [(part.old_text.split("\n"), part.new_text.split("\n")) for part in parts] == [
        (lines[0:6], changed[0:6]),
        (lines[22:29], changed[22:29]),
    ]


def test_a_new_file_has_no_text_before():
    (part,), notes = read_diff("[A new file]\n--- /dev/null\n+++ a.txt\n@@ -0,0 +1,2 @@\n+one\n+two", PATH)
    assert (part.old_text, part.new_text, notes) == (None, "one\ntwo", ("[A new file]",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no diff at all",
        "@@ -1,3 +1,3 @@\n one\n-two",  # cut in the middle
        "@@ -1,3 +1,3 @@\n one\n[7 characters were left out here]\n-two\n+2\n three",
        "@@ -1 +1 @@",
    ],
)
def test_what_is_no_whole_part_is_a_note(text):
    assert read_diff(text, PATH) == ((), tuple(filter(None, text.split("\n"))))


def test_what_a_diff_does_not_show_is_noted_and_its_lines_are_safe():
    text = "[It cannot be undone]\n--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-a\x1b[2Jb\n+c\u202ed\n[3 more lines]"
    (part,), notes = read_diff(text, PATH)
    assert (part.old_text, part.new_text) == ("a[2Jb", "cd")
    assert notes == ("[It cannot be undone]", "[3 more lines]")


def test_the_mark_of_a_last_line_without_an_end_belongs_to_the_diff():
    (part,), notes = read_diff(_shown("one\ntwo", "one\n2"), PATH)
    assert (part.old_text, part.new_text, notes) == ("one\ntwo", "one\n2", ())


def test_a_diff_without_a_path_is_none():
    assert read_diff(_shown("a\n", "b\n"), "")[0] == ()


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a", "-- b", "++ c", "@@ -1 +1 @@", "\\ d", ""]), max_size=12), st.integers(0, 12))
def test_lines_that_look_like_diffs_change_nothing(lines: list[str], at: int) -> None:
    before = "".join(f"{line}\n" for line in lines)
    after = "".join(f"{line}\n" for line in [*lines[:at], "new", *lines[at:]])
    (part,), _ = read_diff(_shown(before, after), PATH)
    old = part.old_text.split("\n") if lines else []
    assert Counter(part.new_text.split("\n")) - Counter(old) == Counter(["new"])
    assert not Counter(old) - Counter(part.new_text.split("\n"))


def _question(command: BoundCommand | None = None) -> ApprovalQuestion:
    kind = "arguments" if command is None else "command"
    return ApprovalQuestion(fake_tool("run", Effect.RUN), "{}", Preview(kind, "run", "", command))


def test_each_decision_of_a_question_is_an_option_and_comes_back():
    for question in (_question(), _question(BoundCommand(("true",), "/bin/true", "/bin/true", "/project"))):
        options = permission_options(question)
        assert [Decision(option.option_id) for option in options] == list(question.decisions)
        assert {option.kind for option in options} == {"allow_once", "allow_always", "reject_once", "reject_always"}


@pytest.mark.parametrize(
    ("arguments", "is_asked"),
    [
        ('{"path": "a.txt"}', False),
        ('{"path": "/elsewhere/a.txt"}', True),
        ('{"path": ""}', True),
        ('{"path": 1}', True),
        ("no JSON", True),
        ('{"path": "a.txt", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", True),
    ],
)
def test_a_mode_allows_no_write_whose_place_it_cannot_read(arguments, is_asked):
    tool = replace(fake_tool("write_file", Effect.WRITE), server="files")
    question = ApprovalQuestion(tool, arguments, Preview("diff", "write", ""))
    assert is_unasked(mode_of("edit"), question, [Path("/project")]) is not is_asked
    assert not is_unasked(mode_of("ask"), question, [Path("/project")])


def test_the_command_line_offers_the_modes_that_there_are():
    (option,) = [parameter for parameter in acp.params if parameter.name == "mode_id"]
    assert tuple(option.type.choices) == tuple(mode.id for mode in MODES)
    assert mode_of(str(option.default)) == MODES[0]


def test_decision_of_a_cancelled_request_is_none():
    from acp.schema import DeniedOutcome, RequestPermissionResponse

    assert decision_of(RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled")), _question()) is None


NESTED = '{"path": "a.txt", "x": ' + "[" * 400 + "]" * 400 + "}"
ARGUMENTS = [
    ('{"path": "a.txt"}', {"path": "a.txt"}),
    ("{}", {}),
    ("[1]", "[1]"),
    ("no JSON\x1b[2J", "no JSON[2J"),
    (NESTED, NESTED),
]


def _started(arguments: str) -> dict[str, Any]:
    result = ToolResult(call_id="c1", tool="read_file", title="read")
    message = Message(id=1, parent_id=None, role="tool", result=result)
    entry = TranscriptEntry(message=message, call=ToolCall("c1", "read_file", arguments))
    return call_started(entry, Path("/project")).model_dump(mode="json", by_alias=True)


@pytest.mark.parametrize(("arguments", "shown"), ARGUMENTS)
def test_arguments_of_any_form_can_be_sent(arguments, shown):
    assert _started(arguments)["rawInput"] == shown


def test_a_line_that_no_file_has_is_no_place():
    (place,) = _started(f'{{"path": "a.txt", "first_line": {10**400}}}')["locations"]
    assert (place["path"], place["line"]) == ("/project/a.txt", None)


def test_pictures_and_sounds_of_a_result_are_shown_below_its_text_unless_they_are_too_large():
    picture, sound, large = (MediaFile(name * 64, kind, 1) for name, kind in zip("abc", KINDS, strict=True))
    attachments = tuple(Attachment(each.sha256, "", each.mime_type, media=(each,)) for each in (picture, sound, large))
    result = ToolResult(call_id="c1", tool="look", outcome=ToolOutcome.DONE)
    message = Message(id=1, parent_id=None, role="tool", content="text", attachments=attachments, result=result)
    contents = {picture.sha256: "AAAA", sound.sha256: "BBBB", large.sha256: "C" * (5 << 20)}
    parts = {each.sha256: MediaPart(each.mime_type, contents[each.sha256]) for each in (picture, sound, large)}
    entry = TranscriptEntry(message=message)
    for update in (call_changed(entry, Path("/")), call_changed(entry, Path("/"), parts)):
        text, *shown = [each.content for each in update.content]
        assert "text" in text.text
    assert [(each.type, each.mime_type, each.data) for each in shown] == [
        ("image", "image/png", "AAAA"),
        ("audio", "audio/wav", "BBBB"),
    ]
