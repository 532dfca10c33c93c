"""A coding agent started by `localllm launch`: it reads a file and writes one with its own tools, as the model says.

Which agent is the first argument, its command the second. The figures that launch reports are printed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from asking import FAKE, SAID, call, say

TIMEOUT_S = 240
DONE = "done"
_EDIT = f"made.txt\n<<<<<<< SEARCH\nnothing\n=======\n{DONE}\n>>>>>>> REPLACE"
_QUIET = ("--no-git", "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-pretty")


_BY_STDIN = {"opencode"}  # which quotes an argument with spaces


def _files(write: str, read: str, path: str) -> Callable[[Path], str]:
    """Return what makes the model write made.txt and read note.txt with tools whose parameter for a file is `path`."""
    return lambda folder: say(
        call(write, **{path: str(folder / "made.txt")}, content=DONE) + call(read, **{path: str(folder / "note.txt")})
    )


def _shell(tool: str, parameter: str) -> Callable[[Path], str]:
    return lambda _: say(call(tool, **{parameter: f"echo {DONE} > made.txt; cat note.txt"}))


# By the name of an agent: what is asked, and its arguments before and after that.
TASKS: Mapping[str, tuple[Callable[[Path], str], tuple[str, ...], tuple[str, ...]]] = {
    "claude": (_files("Write", "Read", "file_path"), ("-p",), ("--allowedTools", "Read,Write")),
    # its own sandbox needs rights that a container lacks
    "codex": (
        _shell("exec_command", "cmd"),
        ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"),
        (),
    ),
    "opencode": (_files("write", "read", "filePath"), ("run",), ()),
    "aider": (lambda _: say(_EDIT), (*_QUIET, "--edit-format", "diff", "--message"), ("made.txt",)),
    "qwen": (_files("write_file", "read_file", "file_path"), ("-y", "-p"), ()),
    "cn": (_files("Write", "Read", "filepath"), ("-p", "--auto"), ()),
    "copilot": (_shell("bash", "command"), ("--allow-all-tools", "-p"), ()),
    "pi": (_files("write", "read", "path"), ("-p",), ()),
}


def main(agent: str, command: str) -> None:
    question, before, after = TASKS[agent]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        (folder / "note.txt").write_text(f"{say(SAID)}\n", encoding="utf-8")
        if agent == "aider":
            (folder / "made.txt").write_text("nothing\n", encoding="utf-8")
        commands = _commands(Path(home), agent, command)
        asked = question(folder)
        arguments = (*before, *(() if agent in _BY_STDIN else (asked,)), *after)
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "app.cli.main", "launch", agent, "--json", "--", *arguments],
            cwd=folder,
            env=_environment(Path(home), commands, folder),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            input=asked if agent in _BY_STDIN else "",
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == 0, said
        assert (folder / "made.txt").read_text(encoding="utf-8").strip() == DONE, said
        assert agent == "aider" or SAID in ran.stdout, said
        assert not list(folder.glob("localllm-*")), "the files of the run are gone"
        assert "llm-run-" not in said, "the key of the run is told to nobody"
        told = json.loads(ran.stderr.splitlines()[-1])
        usage = told["usage"]
        assert told["exit_status"] == 0, told
        assert usage["n_answers"] >= (1 if agent == "aider" else 2), told
        assert usage["n_failed"] == 0, told
        assert agent == "aider" or usage["later_cached_share"] > 0.9, told
        print(json.dumps(told))


def _commands(home: Path, agent: str, command: str) -> Path:
    """Return a folder with the agent's command; one of Python gets its packages, which launch itself must not see."""
    folder = home / "bin"
    folder.mkdir()
    own = f"PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])} {shlex.quote(sys.executable)} -m aider"
    if agent != "aider":
        (folder / agent).symlink_to(command)
    else:
        (folder / agent).write_text(f'#!/bin/sh\n{own} "$@"\n', encoding="utf-8")
        (folder / agent).chmod(0o755)
    return folder


def _environment(home: Path, commands: Path, folder: Path) -> dict[str, str]:
    own = {
        "PATH": os.pathsep.join((str(commands), os.environ["PATH"])),
        "PWD": str(folder),
        "TMPDIR": str(home),
        "LOCALLLM_PORT": FAKE.rpartition(":")[2],
        "LOCALLLM_CACHE_DIR": str(home / "cache"),
        "LOCALLLM_DATA_DIR": os.environ["SERVICE_DATA_DIR"],
        "LOCALLLM_CONFIG": str(home / "config.toml"),
    }
    return {name: value for name, value in {**os.environ, **own}.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    main(*sys.argv[1:])
