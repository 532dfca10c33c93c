"""A coding agent that `localllm launch` does not start, in one-shot mode: it does the task, as the model says."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asking import FAKE, MODEL, SAID
from task import Tools, is_done, set_up

HOME = Path(os.environ["HOME"])
COMMAND = os.environ["CLIENT_COMMAND"]
TIMEOUT_S = 240
_VIBE = f"""active_model = "{MODEL}"

[[providers]]
name = "localllm"
api_base = "{FAKE}/v1"
api_key_env_var = "LOCALLLM_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "{MODEL}"
provider = "localllm"
alias = "{MODEL}"
"""


def _set_up_cline() -> None:
    auth = ("auth", "--provider", "openai", "--apikey", "any", "--modelid", MODEL, "--baseurl", f"{FAKE}/v1")
    subprocess.run([COMMAND, *auth], check=True, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


def _set_up_vibe() -> None:
    (HOME / ".vibe").mkdir()
    (HOME / ".vibe" / "config.toml").write_text(_VIBE, encoding="utf-8")


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
        arguments=("--provider", "openai", "--model", MODEL),
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
        environment={"LOCALLLM_KEY": "any"},
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
        environment={"LLM_API_KEY": "any", "LLM_BASE_URL": f"{FAKE}/v1", "LLM_MODEL": f"openai/{MODEL}"},
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
