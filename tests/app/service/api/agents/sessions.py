"""Coding agents as their requests show them: what each sends first, and how it goes on from an answer.

The requests were recorded from the programs themselves, in the versions that the files beside this one name, with every
text replaced by its length. `filled` gives them a sixteenth of it: a token of the fake engine is a letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

__all__ = ["AGENTS", "Agent", "Aider", "AiderOverOllama", "Call", "ClaudeCode", "Codex", "OpenCode", "QwenCode", "say"]

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGNwaDiAFTEMLQkAYvNgAXSglMMAAAAASUVORK5CYII="
IS_PICTURE = ".png"
_WORDS = "a recorded text was here, "
_SHARE = 16

Call = tuple[str, dict[str, Any]]  # name and arguments of a tool


def recorded(name: str) -> dict[str, Any]:
    """Return the requests of the agent in `name`.json, filled."""
    found: dict[str, Any] = filled(json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8")))
    return found


def filled(value: Any) -> Any:
    """Return `value` with letters in place of each `{"letters": n}`."""
    if isinstance(value, dict):
        if value.keys() == {"letters"}:
            n_letters = -(-value["letters"] // _SHARE)
            return (_WORDS * (n_letters // len(_WORDS) + 1))[:n_letters]
        return {key: filled(part) for key, part in value.items()}
    return [filled(part) for part in value] if isinstance(value, list) else value


def say(*calls: Call) -> str:
    """Return what makes the fake model call these tools."""
    return f"<say>{''.join(_written(name, arguments) for name, arguments in calls)}</say>"


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass
class Answer:
    """What an agent understood of a streamed answer; `parts` go back with its next request."""

    text: str = ""
    calls: list[tuple[str, Call]] = field(default_factory=list)  # each with its id
    is_cut: bool = False
    parts: Any = None


class Agent(Protocol):
    """A coding agent in the middle of its session."""

    name: str

    def read(self, file: str) -> Call:
        """Return the call by which the agent reads `file`."""

    def ask(self, text: str) -> None:
        """Let the user ask."""

    async def answer(self, http: httpx.AsyncClient, **changes: Any) -> Answer:
        """Send the request as it is now, with `changes` of its fields, and read the stream to its end."""

    def go_on(self, answer: Answer, results: list[str]) -> None:
        """Take the answer into the history with the results of its calls; one that ends in .png is a picture."""


async def _events(http: httpx.AsyncClient, request: Mapping[str, Any], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the answer. It must be one without an error."""
    response = await http.post(request["path"], json=body, headers=request["headers"])
    assert response.status_code == 200, (response.status_code, response.text[:600])
    lines = response.text.splitlines()
    if "event-stream" in response.headers["content-type"]:
        lines = [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    events = [json.loads(line) for line in lines if line]
    assert not any("error" in event and event["error"] for event in events), events[-1]
    return events


class ClaudeCode:
    """Claude Code 2.1.197: /v1/messages, tools, pictures in the results, a small model for the title."""

    name = "Claude Code"
    size = "max_tokens"
    unknown_model = "claude-haiku-4-5-20251001"

    def __init__(self, model: str) -> None:
        requests = recorded("claude_code")
        self.first, self.small = requests["first"], requests["small"]
        self.body = {**self.first["body"], "model": model}
        self.messages: list[dict[str, Any]] = self.body["messages"]

    def read(self, file: str) -> Call:
        return "Read", {"file_path": f"/home/me/{file}"}

    def ask(self, text: str) -> None:
        self.messages[0]["content"][-1]["text"] = text

    async def answer(self, http: httpx.AsyncClient, **changes: Any) -> Answer:
        answer = Answer(parts=[])
        pieces: list[str] = []
        events = await _events(http, self.first, {**self.body, **changes})
        for event in events:
            match event["type"]:
                case "content_block_start":
                    answer.parts.append(dict(event["content_block"]))
                    pieces = []
                case "content_block_delta":
                    delta = event["delta"]
                    pieces.append(delta.get("text") or delta.get("partial_json") or delta.get("thinking") or "")
                case "content_block_stop":
                    self._close(answer, "".join(pieces))
                case "message_delta":
                    answer.is_cut = event["delta"]["stop_reason"] == "max_tokens"
        assert events[-1]["type"] == "message_stop"
        return answer

    def _close(self, answer: Answer, text: str) -> None:
        part = answer.parts[-1]
        if part["type"] == "tool_use":
            try:
                part["input"] = json.loads(text or "{}")
            except ValueError:  # Claude Code sends back an empty object for arguments that were cut
                part["input"] = {}
            answer.calls.append((part["id"], (part["name"], part["input"])))
        elif part["type"] == "text":
            part["text"] = text
            answer.text += text

    def go_on(self, answer: Answer, results: list[str]) -> None:
        blocks = [
            {"tool_use_id": call_id, "type": "tool_result", "content": self._result(result)}
            for (call_id, _), result in zip(answer.calls, results, strict=True)
        ]
        self.messages += [
            {"role": "assistant", "content": answer.parts or [{"type": "text", "text": "(no content)"}]},
            {"role": "user", "content": blocks or [{"type": "text", "text": results[0]}]},
        ]

    def _result(self, result: str) -> Any:
        if result != IS_PICTURE:
            return f"1\t{result}\n2\t"
        source = {"type": "base64", "data": PICTURE, "media_type": "image/png"}
        return [{"type": "image", "source": source}]


class Codex:
    """Codex 0.169.0: /v1/responses with the whole history, nothing stored, pictures in the results."""

    name = "Codex"
    size = "max_output_tokens"
    unknown_model = "gpt-5.1-codex-mini"

    def __init__(self, model: str) -> None:
        self.first = recorded("codex")["first"]
        self.body = {**self.first["body"], "model": model}
        self.items: list[dict[str, Any]] = self.body["input"]

    def read(self, file: str) -> Call:
        if file.endswith(IS_PICTURE):
            return "view_image", {"path": f"/home/me/{file}"}
        return "exec_command", {"cmd": f"cat {file}"}

    def ask(self, text: str) -> None:
        self.items[-1]["content"][0]["text"] = text

    async def answer(self, http: httpx.AsyncClient, **changes: Any) -> Answer:
        *_, last = await _events(http, self.first, {**self.body, **changes})
        response = last["response"]
        answer = Answer(is_cut=last["type"] == "response.incomplete", parts=response["output"])
        assert answer.is_cut or last["type"] == "response.completed", "Codex would ask again"
        for item in response["output"]:
            if item["type"] == "function_call":
                answer.calls.append((item["call_id"], (item["name"], _arguments(item["arguments"]))))
            elif item["type"] == "message":
                answer.text += "".join(part["text"] for part in item["content"])
        return answer

    def go_on(self, answer: Answer, results: list[str]) -> None:
        self.items += answer.parts
        for (call_id, _), result in zip(answer.calls, results, strict=False):
            self.items.append({"type": "function_call_output", "call_id": call_id, "output": self._result(result)})
        if not answer.calls:
            content = [{"type": "input_text", "text": results[0]}]
            self.items.append({"type": "message", "role": "user", "content": content})

    def _result(self, result: str) -> Any:
        if result != IS_PICTURE:
            return f"Chunk ID: 1fe091\nWall time: 0.0000 seconds\nProcess exited with code 0\nOutput:\n{result}\n"
        return [{"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "high"}]


class _ChatAgent:
    """An agent over /v1/chat/completions."""

    size = "max_tokens"
    media_text = ""
    empty: str | None = None  # content of a message that only calls

    def __init__(self, model: str, name: str) -> None:
        self.requests = recorded(name)
        self.first = self.requests["first"]
        self.body = {**self.first["body"], "model": model}
        self.messages: list[dict[str, Any]] = self.body["messages"]

    async def answer(self, http: httpx.AsyncClient, **changes: Any) -> Answer:
        answer, fragments = Answer(), {}
        for event in await _events(http, self.first, {**self.body, **changes}):
            for choice in event["choices"]:
                answer.is_cut |= choice.get("finish_reason") == "length"
                answer.text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    fragment = fragments.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                    fragment["id"] += call.get("id") or ""
                    fragment["name"] += call["function"].get("name") or ""
                    fragment["arguments"] += call["function"].get("arguments") or ""
        calls = [*fragments.values()]
        answer.calls = [(call["id"], (call["name"], _arguments(call["arguments"]))) for call in calls]
        answer.parts = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
        return answer

    def go_on(self, answer: Answer, results: list[str]) -> None:
        said: dict[str, Any] = {"role": "assistant", "content": answer.text or self.empty}
        if answer.parts:
            said["tool_calls"] = answer.parts
        self.messages.append(said)
        for (call_id, _), result in zip(answer.calls, results, strict=False):
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": self._result(result)})
        if IS_PICTURE in results:
            media = [{"type": "text", "text": self.media_text}, _image_url()]
            self.messages.append({"role": "user", "content": media})
        if not answer.calls:
            self.messages.append({"role": "user", "content": results[0]})

    def _result(self, result: str) -> Any:
        raise NotImplementedError


class OpenCode(_ChatAgent):
    """opencode 1.18.33: a picture of a tool comes in a message of the user after the results."""

    name = "opencode"
    unknown_model = "gpt-5-nano"
    media_text = "Attached media from tool result:"
    empty = ""

    def __init__(self, model: str) -> None:
        super().__init__(model, "opencode")
        self.small = self.requests["small"]

    def read(self, file: str) -> Call:
        return "read", {"filePath": f"/home/me/{file}"}

    def ask(self, text: str) -> None:
        self.messages[-1]["content"] = text

    def _result(self, result: str) -> Any:
        if result == IS_PICTURE:
            return "Image read successfully"
        return f"<path>/home/me/1.txt</path>\n<type>file</type>\n<content>\n1: {result}\n\n(End of file)\n</content>"


class QwenCode(_ChatAgent):
    """Qwen Code 0.24.4: a picture of a tool comes in a message of the user after the results."""

    name = "Qwen Code"
    unknown_model = "qwen3-coder-plus"
    media_text = "(attached media from previous tool call)"

    def __init__(self, model: str) -> None:
        super().__init__(model, "qwen_code")

    def read(self, file: str) -> Call:
        return "read_file", {"file_path": f"/home/me/{file}"}

    def ask(self, text: str) -> None:
        self.messages[-1]["content"][-1]["text"] = text

    def _result(self, result: str) -> Any:
        if result == IS_PICTURE:
            return "Image overview: 8x8; oriented source: 8x8."
        return [{"type": "text", "text": f"{result}\n"}]


class Aider(_ChatAgent):
    """aider 0.86.2: no tools; files and a picture stand before the conversation, its rules after it."""

    name = "aider"
    unknown_model = "gpt-4o-mini"
    kind = "first"

    def __init__(self, model: str) -> None:
        super().__init__(model, "aider")
        self.first = self.requests[self.kind]
        self.body = {**self.first["body"], "model": model}
        self.messages = self.body["messages"]

    def read(self, file: str) -> Call:
        return "", {"file": file}

    def ask(self, text: str) -> None:
        self.messages[self._question] = {"role": "user", "content": text}

    def go_on(self, answer: Answer, results: list[str]) -> None:
        self.messages[self._question + 1 : self._question + 1] = [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": results[-1]},
        ]

    @property
    def _question(self) -> int:
        return max(index for index, message in enumerate(self.messages) if message["role"] == "user")


class AiderOverOllama(Aider):
    """aider 0.86.2 over /api/chat, by litellm, which gives each message a list of pictures."""

    name = "aider over Ollama"
    unknown_model = "gpt-4o"
    kind = "ollama"

    async def answer(self, http: httpx.AsyncClient, **changes: Any) -> Answer:
        answer = Answer()
        for event in await _events(http, self.first, {**self.body, **changes}):
            answer.text += event["message"]["content"]
            answer.is_cut |= event.get("done_reason") == "length"
        return answer


def _image_url() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; those of one that was cut are no JSON, and agents tell the model so."""
    try:
        arguments: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return arguments


AGENTS = (ClaudeCode, Codex, OpenCode, QwenCode, Aider, AiderOverOllama)
