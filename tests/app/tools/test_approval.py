"""What the rules of a chat and the decisions of a person mean for a call."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.protocol.chat import Tool, ToolCall
from app.protocol.codec import decode, encode
from app.tools.approval import (
    N_NOTED,
    N_STOPPED,
    ApprovalQuestion,
    ApprovalRule,
    Decision,
    StepKind,
    Verdict,
    n_in_a_row,
    next_step,
    note_of,
    repeat_note,
    rule_of,
    verdict,
)
from app.tools.tool import BoundCommand, Effect, Preview, ServerTool

WRITE = ServerTool("files", "write_file", Tool("write_file", "Write a file."), Effect.WRITE)
RUN = ServerTool("commands", "run_command", Tool("run_command", "Run a command."), Effect.RUN)


PROJECT = "/home/me/project"


def bound(*argv: str, program: str = "", target: str = "", folder: str = PROJECT) -> BoundCommand:
    program = program or f"/usr/bin/{argv[0]}"
    return BoundCommand(argv, program, target or program, folder)


def question(tool: ServerTool, *argv: str) -> ApprovalQuestion:
    preview = Preview("command", "a call", "", bound(*argv)) if argv else Preview("arguments", "a call", "")
    return ApprovalQuestion(tool, "{}", preview)


def test_without_rules_the_person_is_asked() -> None:
    assert verdict((), WRITE) is Verdict.ASK


@pytest.mark.parametrize("decision", [Decision.TOOL, Decision.SERVER])
def test_a_tool_that_was_allowed_is_not_asked_about_again(decision: Decision) -> None:
    rule = rule_of(decision, question(WRITE))
    assert rule is not None
    assert verdict((rule,), WRITE) is Verdict.ALLOW
    assert verdict((rule,), RUN, bound("ls")) is Verdict.ASK


@pytest.mark.parametrize("decision", [Decision.ONCE, Decision.DENY])
def test_a_decision_about_one_call_leaves_no_rule(decision: Decision) -> None:
    assert rule_of(decision, question(WRITE)) is None


def test_a_refusal_counts_before_what_was_allowed() -> None:
    rules = (ApprovalRule("server", "files"), ApprovalRule("tool", "files", "write_file", is_denied=True))
    assert verdict(rules, WRITE) is Verdict.DENY


def test_a_command_is_allowed_with_exactly_its_arguments() -> None:
    rule = rule_of(Decision.TOOL, question(RUN, "pytest", "-q"))
    assert rule == ApprovalRule("command", "commands", "run_command", bound("pytest", "-q"))
    assert verdict((rule,), RUN, bound("pytest", "-q")) is Verdict.ALLOW
    for argv in (("pytest", "-q", "--basetemp=/home/me"), ("pytest", "-qq"), ("pytest",), ("-q", "pytest")):
        assert verdict((rule,), RUN, bound(*argv)) is Verdict.ASK, argv


def test_a_beginning_is_a_second_choice_that_allows_any_arguments_after_it() -> None:
    rule = rule_of(Decision.BEGINNING, question(RUN, "pytest", "-q"))
    assert rule == ApprovalRule("command", "commands", "run_command", bound("pytest", "-q"), has_more=True)
    assert verdict((rule,), RUN, bound("pytest", "-q", "--basetemp=/tmp/x")) is Verdict.ALLOW
    assert verdict((rule,), RUN, bound("pytest", "-q")) is Verdict.ALLOW
    for argv in (("pytest", "-qq"), ("pytest",), ("pytest", "tests", "-q")):
        assert verdict((rule,), RUN, bound(*argv)) is Verdict.ASK, argv


ELSEWHERE = {
    "another folder": bound("./run.sh", program=f"{PROJECT}/run.sh", folder=f"{PROJECT}/sub"),
    "another program": bound("./run.sh", program=f"{PROJECT}/sub/run.sh"),
    "both": bound("./run.sh", program=f"{PROJECT}/sub/run.sh", folder=f"{PROJECT}/sub"),
    "a link that leads elsewhere": bound("./run.sh", program=f"{PROJECT}/run.sh", target="/tmp/other.sh"),
}


@pytest.mark.parametrize("decision", [Decision.TOOL, Decision.BEGINNING])
@pytest.mark.parametrize("other", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_same_arguments_are_asked_about_where_they_run_something_else(
    other: BoundCommand, decision: Decision
) -> None:
    allowed = bound("./run.sh", program=f"{PROJECT}/run.sh")
    asked = replace(question(RUN, "x"), preview=Preview("command", "a call", "", allowed))
    rule = rule_of(decision, asked)
    assert rule is not None
    assert verdict((rule,), RUN, allowed) is Verdict.ALLOW
    assert verdict((rule,), RUN, other) is Verdict.ASK
    assert note_of((rule,), RUN, other)


@pytest.mark.parametrize(
    ("rule", "command", "note"),
    [
        (ApprovalRule("command", "commands", "run_command", bound("a", folder="/x")), bound("a"), "another folder: /x"),
        (
            ApprovalRule("command", "commands", "run_command", bound("a", program="/b/a")),
            bound("a"),
            "another program: /b/a",
        ),
        (
            ApprovalRule("command", "commands", "run_command", bound("a", target="/c")),
            bound("a"),
            "another program: /c",
        ),
        (ApprovalRule("command", "commands", "run_command", bound("a")), bound("a", "b"), "fewer arguments"),
        (ApprovalRule("command", "commands", "run_command", argv_prefix=("a",)), bound("a", "b"), "An earlier version"),
        (ApprovalRule("command", "commands", "run_command", bound("a", "b")), bound("a", "c"), ""),
        (ApprovalRule("command", "others", "run_command", bound("a", folder="/x")), bound("a"), ""),
        (ApprovalRule("tool", "commands", "run_command"), bound("a"), ""),
    ],
)
def test_the_question_says_why_a_rule_that_looks_right_does_not_hold(
    rule: ApprovalRule, command: BoundCommand, note: str
) -> None:
    assert verdict((rule,), RUN, command) is Verdict.ASK
    assert note in note_of((rule,), RUN, command)
    assert bool(note) == bool(note_of((rule,), RUN, command))


@pytest.mark.parametrize("argv", [("pytest", "-q"), ("pytest", "-q", "--basetemp=/tmp/x")])
def test_a_stored_beginning_of_a_former_version_allows_nothing(argv: tuple[str, ...]) -> None:
    stored = {"scope": "command", "server": "commands", "tool": "run_command", "argv_prefix": ["pytest", "-q"]}
    rule = decode(ApprovalRule, stored)
    assert rule.is_former
    assert verdict((rule,), RUN, bound(*argv)) is Verdict.ASK
    refusal = decode(ApprovalRule, {**stored, "is_denied": True})
    assert verdict((refusal,), RUN, bound(*argv)) is Verdict.DENY


def test_a_rule_about_a_command_is_stored_and_read_again() -> None:
    rule = rule_of(Decision.BEGINNING, question(RUN, "pytest", "-q"))
    assert rule is not None
    assert decode(ApprovalRule, json.loads(json.dumps(encode(rule)))) == rule


def test_no_rule_of_a_server_or_tool_allows_a_command() -> None:
    rules = (ApprovalRule("server", "commands"), ApprovalRule("tool", "commands", "run_command"))
    assert verdict(rules, RUN, bound("rm", "-r", ".")) is Verdict.ASK
    assert Decision.SERVER not in question(RUN, "rm").decisions


def test_a_rule_without_a_command_allows_none() -> None:
    assert verdict((ApprovalRule("command", "commands", "run_command"),), RUN, bound("rm")) is Verdict.ASK
    empty = ApprovalRule(
        "command", "commands", "run_command", BoundCommand((), "/bin/rm", "/bin/rm", PROJECT), has_more=True
    )
    assert verdict((empty,), RUN, bound("rm", program="/bin/rm")) is Verdict.ASK


def test_a_tool_that_is_never_to_run_is_refused() -> None:
    rule = rule_of(Decision.NEVER, question(RUN, "ls"))
    assert rule is not None
    assert verdict((rule,), RUN, bound("ls")) is Verdict.DENY


@pytest.mark.parametrize("decision", [Decision.TOOL, Decision.SERVER])
def test_a_tool_that_changed_since_it_was_allowed_is_asked_about_again(decision: Decision) -> None:
    tool = replace(WRITE, fingerprint="a", server_fingerprint="b")
    rule = rule_of(decision, question(tool))
    assert rule is not None
    assert verdict((rule,), tool) is Verdict.ALLOW
    changed = replace(tool, fingerprint="c", server_fingerprint="d")
    assert verdict((rule,), changed) is Verdict.ASK


def test_a_new_tool_of_a_server_that_was_allowed_is_asked_about() -> None:
    rule = rule_of(Decision.SERVER, question(replace(WRITE, fingerprint="a", server_fingerprint="b")))
    assert rule is not None
    assert verdict((rule,), replace(WRITE, fingerprint="a", server_fingerprint="with another tool")) is Verdict.ASK


def test_a_refusal_holds_for_a_tool_that_changed() -> None:
    rule = rule_of(Decision.NEVER, question(replace(WRITE, fingerprint="a")))
    assert rule is not None
    assert verdict((rule,), replace(WRITE, fingerprint="b")) is Verdict.DENY


def call(arguments: str = '{"path": "a.txt"}', name: str = "read_file") -> ToolCall:
    return ToolCall("1", name, arguments)


def different(number: int) -> tuple[ToolCall, ...]:
    return (call(f'{{"path": "{number}"}}'),)


def test_rounds_go_on_below_the_limit_and_stop_at_it() -> None:
    rounds = [different(number) for number in range(3)]
    assert next_step(rounds, 4).is_allowed
    stopped = next_step(rounds, 3)
    assert stopped.kind is StepKind.LIMIT
    assert "3 rounds" in stopped.text


def test_a_person_who_lets_it_go_on_grants_as_many_rounds_again() -> None:
    rounds = [different(number) for number in range(5)]
    assert next_step(rounds, 3, n_granted=3).is_allowed
    assert next_step([*rounds, different(6)], 3, n_granted=3).kind is StepKind.LIMIT


def test_spaces_and_the_order_of_keys_do_not_make_a_call_another_one() -> None:
    calls = [call('{"a": 1, "b": [2]}'), call('{"b":[2],"a":1}'), call('{ "a" : 1, "b" : [ 2 ] }')]
    assert n_in_a_row(calls) == 3


def test_another_call_in_between_begins_the_count_anew() -> None:
    assert n_in_a_row([call(), call(), call("{}"), call()]) == 1
    assert n_in_a_row([call(), call(name="list_folder")]) == 1
    assert n_in_a_row([]) == 0


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    assert n_in_a_row([call("{"), call("{"), call("{ ")]) == 1
    assert n_in_a_row([call("[" * 100_000), call("[" * 100_000)]) == 2


def test_the_model_is_told_of_the_third_call_in_a_row_and_the_person_asked_at_the_sixth() -> None:
    assert repeat_note([call()] * (N_NOTED - 1)) == ""
    assert "3 times in a row" in repeat_note([call()] * N_NOTED)
    assert next_step([(call(),)] * (N_STOPPED - 1), 25).is_allowed
    asked = next_step([(call(),)] * N_STOPPED, 25)
    assert asked.kind is StepKind.REPEATING
    assert "read_file" in asked.text


def test_repeats_count_anew_once_the_person_let_it_go_on() -> None:
    assert next_step([(call(),)] * (N_STOPPED + 1), 25, n_granted=N_STOPPED).is_allowed
