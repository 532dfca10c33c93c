"""Questions about calls, and calls, as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.tools.approval import ApprovalQuestion, Decision
from app.tools.display import (
    KEYS,
    call_lines,
    decision_text,
    diff_lines,
    progress_text,
    question_lines,
    question_title,
    result_text,
    risk_text,
)
from app.tools.tool import BoundCommand, Effect, FileChange, Preview, ToolOutcome, ToolProgress, ToolResult
from tests.app.tools.fake import fake_tool

RUN = fake_tool("run_command", Effect.RUN, "commands")
WRITE = fake_tool("write_file", Effect.WRITE, "files")
BOUND = BoundCommand(("pytest", "-q"), "/usr/bin/pytest", "/usr/bin/pytest", "/home/me/x")
COMMAND = Preview("command", "run pytest -q", "pytest -q\nin /home/me/x", BOUND)
DONE = ToolResult(call_id="1", tool="read_file", server="files", title="read notes.md", outcome=ToolOutcome.DONE)


def texts(lines):
    return [line.text for line in lines]


def test_every_decision_has_one_key():
    assert sorted(KEYS.values(), key=lambda each: each.value) == sorted(Decision, key=lambda each: each.value)


def test_a_question_shows_who_asks_what_would_happen_and_every_argument():
    asked = ApprovalQuestion(RUN, '{"argv": ["pytest", "-q"], "env": {"CI": "1"}}', COMMAND)
    assert question_title(asked) == "Allow run pytest -q?"
    shown = texts(question_lines(asked))
    assert shown[:4] == [
        "Runs with all your rights · commands: run_command",
        "pytest -q",
        "in /home/me/x",
        "arguments:",
    ]
    assert '    "CI": "1"' in shown


def test_arguments_alone_are_shown_once():
    asked = ApprovalQuestion(fake_tool("send"), '{"to": "all"}', Preview("arguments", "send", '{\n  "to": "all"\n}'))
    assert texts(question_lines(asked))[1:] == ["{", '  "to": "all"', "}"]


@pytest.mark.parametrize(
    ("diff", "risk"),
    [
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n-old\n+new\n+more\n same", "Adds 2 lines and removes 1 line"),
        ("--- a/x\n+++ b/x\n@@ -0,0 +1,1 @@\n+new", "Adds 1 line"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +0,0 @@\n-a\n-b", "Removes 2 lines"),
        ("", "Changes files in the folders of this chat"),
    ],
)
def test_risk_of_a_write_is_what_it_changes(diff, risk):
    asked = ApprovalQuestion(fake_tool("write_file", Effect.WRITE), "{}", Preview("diff", "write x", diff))
    assert risk_text(asked) == risk


def test_arguments_of_a_write_can_be_folded_below_its_diff():
    diff = "--- a/x\n+++ b/x\n@@ -0,0 +1,1 @@\n+new"
    asked = ApprovalQuestion(fake_tool("write_file", Effect.WRITE), '{"path": "x"}', Preview("diff", "write x", diff))
    assert texts(question_lines(asked, is_folded=True))[-2:] == ["+new", "▸ arguments: O shows them"]
    assert '  "path": "x"' in texts(question_lines(asked))


@pytest.mark.parametrize("kind", ["command", "arguments"])
def test_arguments_without_a_diff_are_never_folded(kind):
    asked = ApprovalQuestion(RUN, '{"argv": ["pytest"]}', Preview(kind, "run pytest", "pytest"))
    assert question_lines(asked, is_folded=True) == question_lines(asked)


def test_arguments_that_are_no_json_are_shown_as_they_are():
    asked = ApprovalQuestion(fake_tool("send"), '{"to": \x1b[2J', Preview("arguments", "send", ""))
    assert texts(question_lines(asked))[1:] == ['{"to": [2J']


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Decision.ONCE, "allow once"),
        (Decision.TOOL, "write_file in this chat"),
        (Decision.SERVER, "all of files"),
        (Decision.DENY, "deny"),
        (Decision.NEVER, "never"),
    ],
)
def test_a_decision_says_what_it_is_about(decision, text):
    assert decision_text(decision, ApprovalQuestion(WRITE, "{}", Preview("diff", "write x", ""))) == text


@pytest.mark.parametrize(
    ("argv", "beginning"),
    [
        (("pytest", "-q"), "pytest -q with any further arguments"),
        (("echo", "a b"), "echo 'a b' with any further arguments"),
        (("echo", "a\nb\u202e"), 'echo "a\\nb\\u202e" with any further arguments'),
        (("sh", "-c", "x" * 100), "this with any further arguments"),
    ],
)
def test_a_command_is_allowed_as_it_is_or_by_its_beginning_which_says_what_it_lets_through(argv, beginning):
    asked = ApprovalQuestion(RUN, "{}", replace(COMMAND, command=replace(BOUND, argv=argv)))
    assert decision_text(Decision.TOOL, asked) == "exactly this"
    assert decision_text(Decision.BEGINNING, asked) == beginning
    assert Decision.SERVER not in asked.decisions
    assert Decision.BEGINNING not in ApprovalQuestion(WRITE, "{}", Preview("diff", "write x", "")).decisions


def test_a_question_says_why_a_rule_does_not_hold():
    asked = ApprovalQuestion(RUN, "{}", COMMAND, "What you allowed runs in another folder: /x\x1b[2J.")
    assert texts(question_lines(asked))[1] == "What you allowed runs in another folder: /x[2J."


@pytest.mark.parametrize(
    ("result", "is_running", "text"),
    [
        (replace(DONE, detail="12 lines", duration_s=0.31), False, "✓ read notes.md · 12 lines · 0.3 s"),
        (
            replace(DONE, outcome=ToolOutcome.FAILED, detail="no such file"),
            False,
            "✗ read notes.md · failed · no such file",
        ),
        (replace(DONE, outcome=ToolOutcome.DENIED), False, "⊘ read notes.md · denied"),
        (replace(DONE, outcome=ToolOutcome.CANCELLED), False, "■ read notes.md · cancelled"),
        (replace(DONE, outcome=ToolOutcome.TIMED_OUT, duration_s=60.0), False, "✗ read notes.md · timed out · 60.0 s"),
        (replace(DONE, outcome=ToolOutcome.RUNNING), True, "… read notes.md"),
        (replace(DONE, outcome=ToolOutcome.RUNNING), False, "? read notes.md · cut off: what it did is not known"),
        (replace(DONE, is_undone=True), False, "✓ read notes.md · undone"),
        (replace(DONE, title=""), False, "✓ files: read_file"),
        (replace(DONE, title="a\x1b[2J\nb"), False, "✓ a[2J b"),
    ],
)
def test_a_call_is_one_line(result, is_running, text):
    assert result_text(result, is_running=is_running) == text


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, "running"),
        (ToolProgress(), "running"),
        (ToolProgress("half\x07 way"), "half way"),
        (ToolProgress("files", 1, 4), "25% · files"),
        (ToolProgress("", 9, 3), "100%"),
        (ToolProgress("files", 7), "7 · files"),
        (ToolProgress("files", 7, 0), "7 · files"),
    ],
)
def test_progress_is_a_line(progress, text):
    assert progress_text(progress) == text


def test_below_a_call_are_its_arguments_its_changes_and_what_the_model_reads():
    change = FileChange("/home/me/notes.md", "a", "b")
    lines = call_lines('{"path": "notes.md"}', "@@ -1 +1 @@\n-a\n+b\n", replace(DONE, changes=(change,)))
    assert texts(lines) == [
        "arguments:",
        "{",
        '  "path": "notes.md"',
        "}",
        "changed /home/me/notes.md",
        "result:",
        "@@ -1 +1 @@",
        "-a",
        "+b",
    ]
    assert [line.kind for line in lines][-2:] == ["removed", "added"]
    assert call_lines("", "", DONE) == ()


def test_a_write_begins_with_its_diff():
    written = replace(DONE, changes=(FileChange("/home/me/a", "1", "2"),), diff="@@ -1 +1 @@\n-a\n+b\x1b[2J\n")
    lines = call_lines('{"path": "a"}', "Wrote a (+1 −1 lines).", written)
    assert texts(lines) == [
        "changed /home/me/a",
        "@@ -1 +1 @@",
        "-a",
        "+b[2J",
        "result:",
        "Wrote a (+1 −1 lines).",
        "arguments:",
        "{",
        '  "path": "a"',
        "}",
    ]
    assert [line.kind for line in lines][1:4] == ["place", "removed", "added"]


def test_lines_of_a_file_forge_no_heading_of_its_diff():
    first = "--- a\n+++ a\n@@ -1,3 +1,3 @@\n kept\n--- x\n+++ /home/me/.bashrc\n-old\n+new"
    text = f"{first}\n--- b\n+++ b\n@@ -1 +1 @@\n-@@\n+@@"
    assert [line.kind for line in diff_lines(text)] == [
        *("heading", "heading", "place", "plain", "removed", "added", "removed", "added"),
        *("heading", "heading", "place", "removed", "added"),
    ]
    asked = ApprovalQuestion(WRITE, "{}", Preview("diff", "write a", text))
    assert risk_text(asked) == "Adds 3 lines and removes 3 lines"


def test_the_mark_of_a_missing_newline_is_no_line_of_a_diff():
    text = "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n-c"
    assert [line.kind for line in diff_lines(text)] == ["place", "removed", "plain", "added", "plain", "plain"]
