"""Runs the clients that people use against a real service: `uv run python tests/clients/run.py [--only NAME,NAME]`.

Each is installed in the version of the table, in a folder of its own, and given a home of its own; one that cannot be
installed is named and left out. What each asked is counted by method, path and status (`--requests` prints it). Exits
with 1 where one fails, or where the services refused a request that should have worked. Needs uv, npm and node; see
README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quantizer.system.process import python_command

__all__ = ["CLIENTS", "Client", "Ran", "install", "is_in_reach", "run", "services"]

_HERE = Path(__file__).parent
_TIMEOUT_S = 300
_INSTALL_TIMEOUT_S = 120
_OTHERS_SETTINGS = ("OPENAI_", "ANTHROPIC_", "CLAUDE")  # of whoever runs this
_LOGGED = re.compile(r"^\S+Z (?P<method>[A-Z]+) (?P<path>\S+) (?P<status>\d{3}) ")
_WENT_AWAY = 499  # the client cancelled
_LAST_LINES_S = 0.2  # a request is logged once its answer was sent, which a client may not wait for


@dataclass(frozen=True, slots=True)
class Client:
    """A package in one version, and the script that uses it; `command` is what it installs for a shell, if it does.

    Without a package the script is the client. An `agent` of `localllm launch` is started by that too.
    """

    name: str
    package: str
    script: str = ""
    command: str = ""
    agent: str = ""
    also: tuple[str, ...] = ()  # packages that this one needs and does not name, or that the script adds
    is_small: bool = False  # installed and run within seconds
    python: str = ""  # the version that it needs, where this one will not do
    node: str = ""  # likewise, from the package of Node in npm
    lines: str = ""  # its name in the page of clients, whose program is run too
    refused: tuple[str, ...] = ()  # requests that its script wants refused: method, path and status

    @property
    def is_node(self) -> bool:
        return "@" in self.package


CLIENTS = (
    Client("llama.vim", "", "with_llama_vim.py"),
    Client("openai", "openai==3.57.0", "with_openai.py", lines="openai", is_small=True),
    Client("anthropic", "anthropic==2.14.0", "with_anthropic.py", lines="anthropic", is_small=True),
    Client("openai-tools", "openai==3.57.0", "with_openai_tools.py", is_small=True),
    Client("anthropic-tools", "anthropic==2.14.0", "with_anthropic_tools.py", is_small=True),
    Client("ollama", "ollama==0.6.3", "with_ollama.py", lines="ollama", is_small=True),
    Client("langchain-openai", "langchain-openai==1.7.3", "with_langchain_openai.py", lines="langchain"),
    Client("langchain-ollama", "langchain-ollama==1.1.0", "with_langchain_ollama.py"),
    Client("litellm", "litellm==1.106.2", "with_litellm.py", lines="litellm", also=("mcp==2.3.0",)),
    Client("llm", "llm==0.36", "with_llm.py"),
    Client("instructor", "instructor==1.17.0", "with_instructor.py", lines="instructor"),
    Client("aider", "aider-chat==0.86.2", "with_aider.py", agent="aider"),
    Client("lmstudio", "lmstudio==1.5.0", "with_lmstudio.py", lines="lmstudio", is_small=True),
    Client("openai-js", "openai@7.59.0", "with_openai.mjs", lines="openai-js", is_small=True),
    Client("anthropic-js", "@anthropic-ai/sdk@1.14.0", "with_anthropic.mjs", lines="anthropic-js", is_small=True),
    Client("openai-tools-js", "openai@7.59.0", "with_openai_tools.mjs", is_small=True),
    Client("anthropic-tools-js", "@anthropic-ai/sdk@1.14.0", "with_anthropic_tools.mjs", is_small=True),
    Client("ollama-js", "ollama@0.6.4", "with_ollama.mjs", lines="ollama-js", is_small=True),
    Client("lmstudio-js", "@lmstudio/sdk@1.5.0", "with_lmstudio.mjs", is_small=True),
    Client("openai-agents", "openai-agents==0.24.0", "with_openai_agents.py", lines="openai-agents", is_small=True),
    Client(
        "pydantic-ai", "pydantic-ai-slim[openai]==2.68.0", "with_pydantic_ai.py", lines="pydantic-ai", is_small=True
    ),
    Client(
        "ai-sdk",
        "ai@7.0.173",
        "with_ai_sdk.mjs",
        lines="ai-sdk",
        also=("@ai-sdk/openai@4.0.118", "zod@4.6.7"),
        is_small=True,
    ),
    Client("continue", "@continuedev/openai-adapters@1.37.0", "with_continue.mjs", is_small=True),
    Client(
        "claude-code",
        "@anthropic-ai/claude-code@2.1.332",
        "with_claude_code.py",
        "claude",
        "claude",
        refused=("POST /v1/messages 400",),  # a picture that the model cannot see
    ),
    Client(
        "codex",
        "@openai/codex@0.171.0",
        "with_codex.py",
        "codex",
        "codex",
        refused=("POST /v1/responses 400",),  # a picture that the model cannot see
    ),
    Client("opencode", "opencode-ai@1.18.33", "with_opencode.py", "opencode", "opencode"),
    Client("qwen-code", "@qwen-code/qwen-code@0.24.4", "with_qwen_code.py", "qwen", "qwen"),
    Client("kilo", "@kilocode/cli@7.7.7", "", "kilo", "kilo"),
    Client("continue-cli", "@continuedev/cli@1.5.47", "", "cn", "cn"),
    Client("copilot", "@github/copilot@1.0.102", "", "copilot", "copilot"),
    Client("pi", "@earendil-works/pi-coding-agent@1.6.0", "", "pi", "pi", node="24"),
    Client("cline", "cline@3.0.65", "with_agent.py", "cline", "cline"),
    Client("hermes", "hermes-agent==0.19.0", "", "hermes", "hermes", python="3.12"),
    Client("openclaw", "openclaw@2026.9.6", "", "openclaw", "openclaw", node="24"),
    Client("vibe", "mistral-vibe==3.0.3", "with_agent.py", "vibe", python="3.12"),
    Client("openhands", "openhands==1.16.0", "with_agent.py", "openhands", python="3.12"),
    Client(
        "mcp-filesystem",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "with_mcp_server.py",
        "mcp-server-filesystem",
        is_small=True,
    ),
    Client(
        "mcp-everything",
        "@modelcontextprotocol/server-everything@2026.8.31",
        "with_mcp_server.py",
        "mcp-server-everything",
        is_small=True,
    ),
    Client("mcp-fetch", "mcp-server-fetch==2026.10.24", "with_mcp_server.py", is_small=True),
    Client("mcp-git", "mcp-server-git==2026.10.19", "with_mcp_server.py", is_small=True),
    Client("mcp-time", "mcp-server-time==2026.10.19", "with_mcp_server.py", is_small=True),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a client's scripts said where one failed, "" where all was well, and how often each request came: method,
    path and status."""

    fault: str
    requests: Mapping[str, int]


@contextmanager
def served(home: Path, **settings: str) -> Iterator[str]:
    """Run a service with the guide, and yield where it is. Its requests are logged in <home>/<engine>.log."""
    own = {f"LOCALLLM_{name.upper()}": value for name, value in settings.items()}
    folders = {f"LOCALLLM_{name}_DIR": str(home / name.lower()) for name in ("DATA", "CACHE")}
    environment = {**os.environ, "LOCALLLM_CONFIG": str(home / "config.toml"), "LOCALLLM_PORT": "0", **folders, **own}
    command = python_command("app.cli.main", "serve", "--owned")
    pipe = subprocess.PIPE
    with (
        (home / f"{settings['engine']}.log").open("wb") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment) as process,
    ):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def services(home: Path) -> Iterator[dict[str, str]]:
    """Run a service with the guide and one with the fake engine; yield where they are, as variables of a client."""
    with (
        served(home, engine="llama", model="guide", idle_tune="false", access_log="true") as guide,
        served(home, engine="fake", model="guide", ctx="262144", access_log="true") as fake,
    ):
        # a command attaches only to a service of its own data folder
        folders = {"SERVICE_DATA_DIR": str(home / "data"), "SERVICE_LOGS_DIR": str(home)}
        yield {"LOCALLLM_GUIDE_URL": guide, "LOCALLLM_FAKE_URL": fake, **folders}


def is_in_reach(client: Client) -> bool:
    """Whether the registry of `client` answers at all."""
    python = ["uv", "pip", "install", "--dry-run", "--python", sys.executable, "--target", os.devnull, "pip"]
    command = (
        [shutil.which("npm") or "npm", "view", "--fetch-retries=1", "npm", "version"] if client.is_node else python
    )
    try:
        return subprocess.run(command, capture_output=True, timeout=_INSTALL_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install(client: Client, folder: Path) -> str:
    """Put `client` into `folder`, unless it is there; return why that cannot be done, "" where it can."""
    if folder.exists() or not client.package:
        return ""
    npm = shutil.which("npm") or "npm"
    node = [npm, "install", "--no-audit", "--no-fund", "--fetch-retries=1", "--prefix", str(folder)]
    python = ["uv", "pip", "install", "--quiet", "--python"]
    into = [str(folder / "bin" / "python")] if client.python else [sys.executable, "--target", str(folder)]
    packages = [client.package, *client.also]
    commands = [[*node, *packages] if client.is_node else [*python, *into, *packages]]
    if client.node:
        commands.insert(0, [*node, f"node@{client.node}"])
    if client.python:
        commands.insert(0, ["uv", "venv", "--quiet", "--python", client.python, str(folder)])
    elsewhere = tempfile.gettempdir()  # in the clone uv would apply this project's pins to the client
    try:
        for command in commands:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
                cwd=elsewhere,
                env=os.environ | _path(client, folder),
            )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        reason = next((line for line in said if "error" in line), said[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    return reason


def run(client: Client, folder: Path, urls: dict[str, str]) -> Ran:
    """Run the scripts of `client`, as far as all is well, and return what came of it and what was asked meanwhile."""
    logs = sorted(Path(urls["SERVICE_LOGS_DIR"]).glob("*.log"))
    begin = [log.stat().st_size for log in logs]
    own = [_command(client, folder)] if client.script else []
    printed = [[*_python("with_lines.py"), client.lines]] if client.lines else []
    launched = [[*_python("with_launch.py"), client.agent, _command_path(client, folder)]] if client.agent else []
    fault = next(filter(None, (_run(command, client, folder, urls) for command in (*own, *printed, *launched))), "")
    time.sleep(_LAST_LINES_S)
    lines = b"".join(log.read_bytes()[size:] for log, size in zip(logs, begin, strict=True)).decode().splitlines()
    logged = [found for found in map(_LOGGED.match, lines) if found]
    requests = Counter(" ".join(found.groups()) for found in logged)
    is_refused = {" ".join(found.groups()): 400 <= int(found["status"]) != _WENT_AWAY for found in logged}
    refused = [request for request in requests if is_refused[request] and request not in client.refused]
    unasked = [request for request in client.refused if request not in requests]
    faults = [fault, *(f"refused: {each}\n" for each in refused), *(f"not refused: {each}\n" for each in unasked)]
    return Ran("".join(faults), requests)


def _run(command: Sequence[str], client: Client, folder: Path, urls: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OTHERS_SETTINGS)},
            **urls,
            **_path(client, folder),
            "HOME": home,
            "LLM_USER_PATH": str(Path(home, "llm")),
            "CLIENT_NAME": client.name,
            "CLIENT_FOLDER": str(folder),
            "CLIENT_COMMAND": _command_path(client, folder),
            "PYTHONPATH": os.pathsep.join((str(folder), str(_HERE))),
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return "" if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:]


def _path(client: Client, folder: Path) -> dict[str, str]:
    """Return a PATH on which `client` finds its own version of Node, if it needs one."""
    own = str(folder / "node_modules" / ".bin")
    return {"PATH": os.pathsep.join((own, os.environ["PATH"]))} if client.node else {}


def _command(client: Client, folder: Path) -> list[str]:
    """Return how the script is run; one for node has to lie beside what it imports."""
    if not client.script.endswith(".mjs"):
        return _python(client.script)
    for name in ("asking.mjs", "task.mjs", client.script):
        shutil.copy(_HERE / name, folder / name)
    return [shutil.which("node") or "node", str(folder / client.script)]


def _command_path(client: Client, folder: Path) -> str:
    return str((folder / "node_modules" / ".bin" if client.is_node else folder / "bin") / client.command)


def _python(script: str) -> list[str]:
    return [sys.executable, "-P", str(_HERE / script)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--keep", type=Path, help="a folder for what is installed")
    parser.add_argument("--requests", action="store_true", help="print what each asked")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else [client.name for client in CLIENTS]
    n_failed = 0
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        urls = stack.enter_context(services(home))
        for client in (client for client in CLIENTS if client.name in only):
            folder = (options.keep or home) / client.name
            name = client.package or client.name
            if reason := install(client, folder):
                print(f"left  {name:36} not installed: {reason}", flush=True)
                continue
            begun_s = time.monotonic()
            ran = run(client, folder, urls)
            n_failed += bool(ran.fault)
            took = f"{time.monotonic() - begun_s:5.1f} s, {sum(ran.requests.values()):3} requests"
            print(f"{'FAIL' if ran.fault else 'ok':4}  {name:36} {took}", flush=True)
            for request, n_times in sorted(ran.requests.items()) if options.requests else ():
                print(f"      {n_times:4} {request}", flush=True)
            print(ran.fault, end="", flush=True)
    return min(n_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
