"""A coding agent started by `localllm launch`: it reads a note, edits a file and runs its test, as the model says.

Which agent is the first argument, its command the second. The figures that launch reports are printed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asking import FAKE, SAID, say
from task import FILE, NEW, OLD, RUN_TEST, Tools, is_done, set_up, write_test

TIMEOUT_S = 240
_EDIT = f"{FILE}\n<<<<<<< SEARCH\n{OLD}\n=======\n{NEW}\n>>>>>>> REPLACE"
_QUIET = ("--no-git", "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-pretty")
_BY_STDIN = {"opencode", "kilo"}  # which quote an argument with spaces
_OPENCODE = Tools(read="read", path="filePath", edit="edit", old="oldString", new="newString", shell="bash")
_DESCRIBED = {"description": "Run the test"}

# By the name of an agent: its tools, None for aider, which has none; and its arguments before and after the question.
TASKS: Mapping[str, tuple[Tools | None, tuple[str, ...], tuple[str, ...]]] = {
    "claude": (
        Tools(read="Read", path="file_path", edit="Edit", old="old_string", new="new_string", shell="Bash"),
        ("-p",),
        ("--allowedTools", "Read,Edit,Bash"),
    ),
    # its own sandbox needs rights that a container lacks
    "codex": (
        Tools(shell="exec_command", command="cmd"),
        ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"),
        (),
    ),
    "opencode": (_OPENCODE, ("run",), ()),
    "kilo": (_OPENCODE, ("run", "--auto"), ()),
    "aider": (None, (*_QUIET, "--edit-format", "diff", "--auto-test", "--test-cmd", RUN_TEST, "--message"), (FILE,)),
    "qwen": (
        Tools(
            read="read_file",
            path="file_path",
            edit="edit",
            old="old_string",
            new="new_string",
            shell="run_shell_command",
            of_shell={"is_background": False},
        ),
        ("-y", "-p"),
        (),
    ),
    "cn": (
        Tools(
            read="Read",
            path="filepath",
            edit="Edit",
            edit_path="file_path",
            old="old_string",
            new="new_string",
            shell="Bash",
        ),
        ("-p", "--auto"),
        (),
    ),
    "copilot": (
        Tools(read="view", path="path", edit="edit", old="old_str", new="new_str", shell="bash", of_shell=_DESCRIBED),
        ("--allow-all-tools", "-p"),
        (),
    ),
    "cline": (
        Tools(
            shell="run_commands",
            command="commands",
            takes_several=True,
            are_escaped=True,
            edit="editor",
            edit_path="path",
            old="old_text",
            new="new_text",
        ),
        (),
        (),
    ),
    "hermes": (
        Tools(
            read="read_file",
            path="path",
            edit="patch",
            old="old_string",
            new="new_string",
            of_edit={"mode": "replace"},
            shell="terminal",
            are_escaped=True,
        ),
        ("chat", "--yolo", "-Q", "-q"),
        (),
    ),
    "openclaw": (
        Tools(read="read", path="path", edit="edit", edits="edits", old="oldText", new="newText", shell="exec"),
        ("agent", "exec"),
        (),
    ),
    "pi": (
        Tools(read="read", path="path", edit="edit", edits="edits", old="oldText", new="newText", shell="bash"),
        ("-p",),
        (),
    ),
}


def main(agent: str, command: str) -> None:
    tools, before, after = TASKS[agent]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        if tools is not None:
            asked = set_up(folder, tools)
        else:
            (folder / FILE).write_text(f"{OLD}\n", encoding="utf-8")
            write_test(folder)
            asked = say(_EDIT)
        commands = _commands(Path(home), agent, command)
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
        assert is_done(folder), said
        assert SAID in ran.stdout, said
        assert not list(folder.glob("localllm-*")), "the files of the run are gone"
        assert "llm-run-" not in said, "the key of the run is told to nobody"
        told = json.loads(ran.stderr.splitlines()[-1])
        usage = told["usage"]
        assert told["exit_status"] == 0, told
        n_answers = 1 if tools is None else 2 if tools.are_escaped else 4
        assert usage["n_answers"] >= n_answers, told
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
