"""What share of thirty tiny tasks a model solves with the tools of the chat: find, read, edit, run and fix.

    python -m tests.bench.tools.tiny_tasks [MODEL] [--only find,edit] [--times 1] [--rounds 8] [--tokens 200] [--shows]

Each task is asked in a chat of its own, in a folder of its own, through the real service, at temperature 0. A command
is allowed only where it is python3 with a file of the folder: a small model may call anything. Told by kind: tasks
solved, those in which the model called a tool at all, calls, and those of them that failed. SmolLM2 135M, when none is
given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from app.chat.backend import ChatBackend, ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import ChatSettings, Message, MessageContent
from app.chat.events import ApprovalNeeded
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import ChatState
from app.client.service_client import ServiceClient
from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalQuestion, Decision, ToolSettings
from app.tools.backend import CallRequest
from app.tools.builtin.servers import tool_runner
from app.tools.tool import ToolOutcome
from quantizer.system.errors import UserError
from tests.bench.report import show
from tests.bench.served import free_port, serve
from tests.bench.tools.tasks import TASKS, Task
from tests.real.packages import SMOLLM, fetch

_OPTIONS = {"temperature": 0.0, "think": "off"}


@dataclass(frozen=True, slots=True)
class Tried:
    """How a task went. `problem` is the error that ended it, "" where it came to an answer."""

    task: Task
    is_solved: bool
    branch: tuple[Message, ...]
    problem: str = ""

    @property
    def n_calls(self) -> int:
        return sum(message.role == "tool" for message in self.branch)

    @property
    def n_failed(self) -> int:
        done = (ToolOutcome.DONE,)
        return sum(message.result is not None and message.result.outcome not in done for message in self.branch)


def tool_settings(folder: Path, max_rounds: int = 8) -> ToolSettings:
    return ToolSettings(("files", "commands"), (str(folder),), max_rounds=max_rounds)


def decision(question: ApprovalQuestion, folder: Path) -> Decision:
    """Return what is allowed: files of the folder, and python3 with one of them."""
    command = question.preview.command
    if command is None:
        return Decision.ONCE
    words = command.argv
    is_known = len(words) == 2 and words[0] == "python3" and (Path(command.folder) / words[1]).is_file()
    return Decision.ONCE if is_known and Path(command.folder).is_relative_to(folder) else Decision.DENY


async def run_calls(task: Task, folder: Path, data_dir: Path) -> str:
    """Write the files of `task`, make its calls, and return what the last one returned."""
    task.write(folder)
    tools, text = tool_runner(data_dir), ""
    try:
        for number, (name, arguments) in enumerate(task.calls):
            call = ToolCall(f"c{number}", name, json.dumps(arguments))
            text = (await tools.run(CallRequest(call, tool_settings(folder), _Allowing(folder)))).text
    finally:
        await tools.close()
    return text


@dataclass(frozen=True, slots=True)
class _Allowing:
    folder: Path

    async def ask(self, question: ApprovalQuestion) -> Decision:
        return decision(question, self.folder)


async def try_task(
    task: Task, backend: ChatBackend, state: ConnectionState, data_dir: Path, max_rounds: int, max_tokens: int
) -> Tried:
    """Ask a model to solve `task`."""
    with tempfile.TemporaryDirectory(dir=data_dir) as top:
        folder = Path(top)
        task.write(folder)
        tools = tool_runner(data_dir / "tools")
        settings = ChatSettings(options={**_OPTIONS, "max_tokens": max_tokens}, tools=tool_settings(folder, max_rounds))
        chat = ChatState(
            OpenedChat(InMemoryChatRepository().new(), Conversation(settings)), LoadedModel(backend, state), tools=tools
        )
        problem = ""
        try:
            async with aclosing(ask(chat, MessageContent(content=task.question), None)) as events:
                async for event in events:
                    if isinstance(event, ApprovalNeeded):
                        chat.approvals.answer(event.question, decision(event.question, folder))
                    problem = str(getattr(event, "error", "") or "")
        except UserError as error:
            problem = str(error)
        finally:
            await tools.close()
        branch = chat.conversation.branch
        answer = branch[-1].content if branch[-1].role == "assistant" else ""
        return Tried(task, task.is_solved(folder, answer), branch, problem)


async def _measure(model: Path, options: argparse.Namespace) -> list[Tried]:
    kinds = options.only.split(",") if options.only else ()
    tried = []
    with serve(model, free_port()) as served, tempfile.TemporaryDirectory() as data_dir:
        async with ServiceClient(f"http://127.0.0.1:{served.port}") as client:
            (status,) = [each for each in (await client.status()).models if each.state == "ready"]
            for _ in range(options.times):
                for task in TASKS:
                    if kinds and task.kind not in kinds:
                        continue
                    state = ConnectionState.of_model(status)
                    one = await try_task(task, client, state, Path(data_dir), options.rounds, options.tokens)
                    tried.append(one)
                    print(f"{'solved' if one.is_solved else '      '} {task.kind:5} {task.question[:70]}", flush=True)
                    if options.shows:
                        _show(one)
    return tried


def _show(tried: Tried) -> None:
    for message in tried.branch[1:]:
        calls = " ".join(f"{call.name}({call.arguments})" for call in message.calls)
        print(f"       {message.role}: {message.content[:300]!r} {calls[:300]}", flush=True)
    if tried.problem:
        print(f"       {tried.problem}", flush=True)


def table(tried: Sequence[Tried]) -> Table:
    made = Table("", "tasks", "solved", "with a call", "calls", "failed calls", box=None)
    kinds = Counter(each.task.kind for each in tried)
    for kind in (*kinds, ""):
        these = [each for each in tried if kind in ("", each.task.kind)]
        solved, calling = sum(each.is_solved for each in these), sum(each.n_calls > 0 for each in these)
        counts = (sum(each.n_calls for each in these), sum(each.n_failed for each in these))
        made.add_row(kind or "all", *map(str, (len(these), solved, calling, *counts)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="kinds of tasks, separated by commas")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--shows", action="store_true", help="print what was answered and called")
    options = parser.parse_args()
    show(table(asyncio.run(_measure(options.model or fetch(SMOLLM), options))))


if __name__ == "__main__":
    main()
