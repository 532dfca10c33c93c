"""Calls of tools, their results and a chat's tools in files of chats: read from untrusted JSON. Pure.

A file switches no tool on, names no folder and allows no call: of a chat's tools only refusals and the limit of rounds
are imported. What calls changed on the disk is not imported either, so that nobody undoes what was never done here.
"""

from __future__ import annotations

import json

from app.chat.formats.json_reader import FormatError, JsonField, SkippedItem
from app.protocol.chat import ToolCall
from app.tools.approval import DEFAULT_MAX_ROUNDS, NO_TOOL_SETTINGS, ApprovalRule, ToolSettings
from app.tools.result import ToolOutcome, ToolResult

_MAX_ROUNDS = 1000
_OUTCOMES = tuple(each.value for each in ToolOutcome)


def read_calls(calls: JsonField) -> tuple[ToolCall, ...]:
    """Return the calls of a message in localllm's own form. Raises FormatError."""
    return tuple(
        ToolCall(call.at("call_id").text(), call.at("name").text(), call.at("arguments").text())
        for call in calls.items()
    )


def read_result(result: JsonField, skipped: list[SkippedItem]) -> ToolResult | None:
    """Return the result of a call in localllm's own form, None if not given; what it changed is added to `skipped`.
    Raises FormatError."""
    if not result.is_given:
        return None
    outcome = result.at("outcome")
    if outcome.text() not in _OUTCOMES:
        raise FormatError(outcome.place, f"is none of {', '.join(_OUTCOMES)}")
    changes = result.at("changes")
    if any(changes.items()):
        skipped.append(SkippedItem(changes.place, "is about files, which cannot be undone from an imported chat"))
    return ToolResult(
        call_id=result.at("call_id").text(),
        tool=result.at("tool").text(),
        server=result.at("server").text(),
        title=result.at("title").text(),
        outcome=ToolOutcome(outcome.text()),
        detail=result.at("detail").text(),
        n_bytes=int(result.at("n_bytes").number()),
        duration_s=result.at("duration_s").number(),
        diff=result.at("diff").text(),
        is_undone=result.at("is_undone").flag(),
    )


def read_tool_settings(tools: JsonField, skipped: list[SkippedItem]) -> ToolSettings:
    """Return the tools of a chat without what only a person may decide, which is added to `skipped`. Raises
    FormatError."""
    if not tools.is_given:
        return NO_TOOL_SETTINGS
    rules = [_rule(rule) for rule in tools.at("rules").items()]
    denials = tuple(rule for rule in rules if rule.is_denied)
    if any((*tools.at("enabled").items(), *tools.at("folders").items())) or len(denials) < len(rules):
        skipped.append(SkippedItem(tools.place, "switches tools on or allows calls, which only you do: see /tools"))
    n_rounds = int(tools.at("max_rounds").number()) or DEFAULT_MAX_ROUNDS
    return ToolSettings(rules=denials, max_rounds=min(n_rounds, _MAX_ROUNDS))


class CallMatcher:
    """Reads the calls of messages in OpenAI's and Ollama's form, in their order, and which call a result answers.

    Ollama's have no ids, and name at most the tool: a result then answers the first such call that has none.
    """

    def __init__(self) -> None:
        self._waiting: list[ToolCall] = []

    def calls(self, calls: JsonField) -> tuple[ToolCall, ...]:
        """Return the calls of an answer. Raises FormatError."""
        found: dict[str, ToolCall] = {}
        for index, call in enumerate(calls.items()):
            call_id = call.at("id").text()
            call_id = call_id if call_id and call_id not in found else f"call{index:05d}"
            function = call.at("function")
            found[call_id] = ToolCall(call_id, function.at("name").text(), _arguments(function.at("arguments")))
        self._waiting = list(found.values())
        return tuple(found.values())

    def result(self, message: JsonField) -> ToolResult | None:
        """Return the result that a message of role "tool" is, None if no call waits for it. Raises FormatError."""
        call_id = message.at("tool_call_id").text()
        name = message.at("tool_name").text() or message.at("name").text()
        named = [call for call in self._waiting if call_id == call.call_id] or [
            call for call in self._waiting if not call_id and name in ("", call.name)
        ]
        if not named:
            return None
        self._waiting.remove(named[0])
        return ToolResult(call_id=named[0].call_id, tool=named[0].name, title=named[0].name, outcome=ToolOutcome.DONE)


def _arguments(arguments: JsonField) -> str:
    """Return the JSON text of arguments, which Ollama writes as an object."""
    return json.dumps(arguments.value) if isinstance(arguments.value, dict) else arguments.text()


def _rule(rule: JsonField) -> ApprovalRule:
    scope = rule.at("scope")
    if scope.text() not in ("tool", "server", "command"):
        raise FormatError(scope.place, "is none of command, server, tool")
    return ApprovalRule(
        scope.text(),  # type: ignore[arg-type]  # one of these
        rule.at("server").text(),
        rule.at("tool").text(),
        tuple(argument.text() for argument in rule.at("argv_prefix").items()),
        rule.at("is_denied").flag(),
    )
