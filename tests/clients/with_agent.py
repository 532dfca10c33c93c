"""A coding agent set up by the lines of the page of clients, in one-shot mode: it does the task, as the model says."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asking import FAKE, MODEL, SAID
from task import Tools, is_done, set_up

from app.launch.editors import editor_settings

HOME = Path(os.environ["HOME"])
COMMAND = os.environ["CLIENT_COMMAND"]
TIMEOUT_S = 240


def _set_up_cline() -> None:
    first, second = editor_settings("cline-cli", FAKE, MODEL).splitlines()
    assert second.split()[1:] == [*AGENTS["cline"].arguments]
    command = [COMMAND, *shlex.split(first)[1:]]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


def _set_up_vibe() -> None:
    (HOME / ".vibe").mkdir()
    (HOME / ".vibe" / "config.toml").write_text(editor_settings("vibe", FAKE, MODEL), encoding="utf-8")
    (HOME / ".vibe" / ".env").write_text("LOCALLLM_KEY=localllm\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Its arguments before the question, its variables, its tools, and what sets it up in the user's home."""

    arguments: tuple[str, ...]
    tools: Tools
    environment: Mapping[str, str] = field(default_factory=dict)
    set_up: Callable[[], None] = lambda: None


_RISK = {"security_risk": "LOW"}
AGENTS = {
    "cline": Agent(
        set_up=_set_up_cline,
        arguments=("--provider", "openai-compatible", "--model", MODEL),
        environment={"CLINE_SESSION_BACKEND_MODE": "local"},  # its daemon would stay behind
        tools=Tools(
            shell="run_commands",
            command="commands",
            takes_several=True,
            are_escaped=True,
            edit="editor",
            edit_path="path",
            old="old_text",
            new="new_text",
        ),
    ),
    "vibe": Agent(
        set_up=_set_up_vibe,
        arguments=("--agent", "auto-approve", "-p"),
        tools=Tools(
            read="read_file",
            path="path",
            edit="edit",
            edit_path="file_path",
            old="old_string",
            new="new_string",
            shell="bash",
            are_escaped=True,
        ),
    ),
    "openhands": Agent(
        arguments=("--headless", "--json", "--override-with-envs", "-t"),
        environment=dict(
            word.split("=", 1) for word in editor_settings("openhands", FAKE, MODEL).splitlines()[0].split()[1:]
        ),
        tools=Tools(
            read="file_editor",
            path="path",
            of_read={"command": "view", **_RISK},
            edit="file_editor",
            old="old_str",
            new="new_str",
            of_edit={"command": "str_replace", **_RISK},
            shell="terminal",
            of_shell=_RISK,
        ),
    ),
}

agent = AGENTS[os.environ["CLIENT_NAME"]]
agent.set_up()
with tempfile.TemporaryDirectory() as place:
    folder = Path(place).resolve()
    ran = subprocess.run(
        [COMMAND, *agent.arguments, set_up(folder, agent.tools)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PWD": str(folder)}
        | dict(agent.environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert is_done(folder), said
    assert SAID in ran.stdout, said
