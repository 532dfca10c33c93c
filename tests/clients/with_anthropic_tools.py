"""The tool runner of Anthropic's Python SDK does the task of the agents: in a thread, streamed, with its memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import anthropic
from anthropic import beta_tool
from anthropic.tools import BetaLocalFilesystemMemoryTool
from asking import FAKE, MODEL, SAID, call, say
from task import RUN_TEST, Tools, is_done, set_up

client = anthropic.Anthropic(base_url=FAKE, api_key="none", max_retries=0)
TOOLS = Tools(read="read", path="path", edit="edit", old="old", new="new", shell="run")


@beta_tool
def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text(encoding="utf-8")


@beta_tool
def edit(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    file = Path(path)
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return "Done."


@beta_tool
def run(command: str) -> str:
    """Run the test."""
    assert command == RUN_TEST
    ran = subprocess.run([sys.executable, RUN_TEST.split()[1]], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout


def last_text(messages: list) -> str:
    return "".join(block.text for block in messages[-1].content if block.type == "text")


for how in ({}, {"stream": True}, {"thread": False}):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        asked = [{"role": "user", "content": set_up(folder, TOOLS)}]
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=1000, messages=asked, tools=[read, edit, run], **how
        )
        answers = [answer.get_final_message() if "stream" in how else answer for answer in runner]
        assert is_done(folder), how
        assert len(answers) == 4, how
        assert last_text(answers) == SAID, (how, answers[-1])

with tempfile.TemporaryDirectory() as place:
    notes = Path(place, "memories")
    memory = BetaLocalFilesystemMemoryTool(base_path=place)
    (notes / "next.txt").write_text(say(SAID), encoding="utf-8")
    path = "/memories/weather.txt"
    steps = [
        call("memory", command="create", path=path, file_text="It rains."),
        call("memory", command="str_replace", path=path, old_str="rains", new_str="snows"),
        call("memory", command="view", path="/memories/next.txt"),
    ]
    asked = [{"role": "user", "content": say("".join(steps))}]
    answers = list(client.beta.messages.tool_runner(model=MODEL, max_tokens=1000, messages=asked, tools=[memory]))
    assert len(answers) == 2
    assert last_text(answers) == SAID, answers[-1]
    assert (notes / "weather.txt").read_text(encoding="utf-8") == "It snows."
