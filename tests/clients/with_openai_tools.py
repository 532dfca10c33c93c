"""The tool runner of OpenAI's Python SDK does the task of the agents over /v1/responses: whole, and streamed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import openai
from asking import FAKE, MODEL, SAID
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from task import RUN_TEST, Tools, is_done, set_up

client = openai.OpenAI(base_url=f"{FAKE}/v1", api_key="none", max_retries=0)
TOOLS = Tools(read="read", path="path", edit="edit", old="old", new="new", shell="run")


def function(name: str, *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": name, "parameters": schema, "strict": True}


def edit(path: str, old: str, new: str) -> str:
    file = Path(path)
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return "Done."


def run(folder: Path, command: str) -> str:
    assert command == RUN_TEST
    ran = subprocess.run([sys.executable, RUN_TEST.split()[1]], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout


for stream in (False, True):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        runner = ResponsesToolRunner(
            functions=[
                RegisteredFunction(function("read", "path"), lambda given: Path(given["path"]).read_text()),
                RegisteredFunction(function("edit", "path", "old", "new"), lambda given: edit(**given)),
                RegisteredFunction(
                    function("run", "command"), lambda given, folder=folder: run(folder, given["command"])
                ),
            ]
        )
        asked = set_up(folder, TOOLS)
        response = runner.run(client, {"model": MODEL, "input": asked}, max_steps=6, stream=stream)
        assert is_done(folder), stream
        assert response.output_text == SAID, (stream, response)
