"""Running commands: shown before, bounded, and ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.tools.builtin.commands import RUN_COMMAND, CommandServer
from app.tools.environment import command_environment
from app.tools.tool import BoundCommand, CallContext, ToolOutput, ToolProgress
from quantizer.system.errors import UserError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shells and signals of POSIX")


class Shell:
    """A folder of a chat in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        usual = {name: value for name in ("PATH", "HOME", "LANG") if (value := os.environ.get(name))}
        own = {**usual, "MYSQL_PWD": "hunter2", "MYAPP_MODE": "test", "EDITOR": "vi"}
        self.server = CommandServer(command_environment(own, ["MYAPP_*"]))
        self.progress: list[ToolProgress] = []
        self.context = CallContext((folder,), on_progress=self.progress.append)

    async def run(self, *argv: str, **more: Any) -> ToolOutput:
        arguments = {"argv": [*argv], **more}
        await self.server.preview(RUN_COMMAND, arguments, self.context)
        return await self.server.call(RUN_COMMAND, arguments, self.context)

    @property
    def output(self) -> str:
        return "".join(progress.output for progress in self.progress)

    async def python(self, code: str, **more: Any) -> ToolOutput:
        return await self.run(sys.executable, "-c", code, **more)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "sub").mkdir()
    return Shell(tmp_path)


async def test_the_preview_shows_program_folder_environment_and_limits(shell: Shell) -> None:
    preview = await shell.server.preview(
        RUN_COMMAND, {"argv": ["sh", "-c", "echo $HOME; rm -r x"], "folder": "sub"}, shell.context
    )
    lines = preview.text.split("\n")
    assert lines[0] == "sh -c 'echo $HOME; rm -r x'"
    assert lines[1].startswith("program: /")
    assert lines[2] == f"folder: {shell.folder}/sub"
    assert lines[3].startswith("environment: ")
    assert lines[3].endswith("usual variables and MYAPP_MODE (command_variables), without 2 others of yours")
    assert lines[4:] == ["input: none; stopped after 120 s"]
    program = lines[1].removeprefix("program: ").partition(" → ")[0]
    argv = ("sh", "-c", "echo $HOME; rm -r x")
    assert preview.kind == "command"
    assert preview.command == BoundCommand(argv, program, str(Path(program).resolve()), f"{shell.folder}/sub")  # noqa: ASYNC240


async def test_the_preview_names_a_variable_that_the_command_will_miss(shell: Shell) -> None:
    for argv in (
        ["sh", "-c", 'mysql -p"$MYSQL_PWD"'],
        ["sh", "-c", "os.environ['MYSQL_PWD']"],
        ["printenv", "MYSQL_PWD"],
    ):
        preview = await shell.server.preview(RUN_COMMAND, {"argv": argv}, shell.context)
        assert "not passed: MYSQL_PWD, which the command names (command_variables adds names)" in preview.text


async def test_arguments_that_hide_something_are_shown_as_they_are(shell: Shell) -> None:
    preview = await shell.server.preview(RUN_COMMAND, {"argv": ["echo", "a\u202eb\x1b[2J"]}, shell.context)
    assert preview.title == 'run echo "a\\u202eb\\u001b[2J"'


async def test_output_of_both_kinds_and_the_status_come_back(shell: Shell) -> None:
    output = await shell.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert output.text == "out\nerr\n[exit status 3]"
    assert (output.is_error, output.detail, output.n_bytes) == (False, "exit status 3", 8)


async def test_no_shell_reads_the_arguments(shell: Shell) -> None:
    assert (await shell.run("echo", "$HOME; `id` *")).text == "$HOME; `id` *\n[exit status 0]"


async def test_it_runs_in_its_folder_without_input_and_without_secrets(shell: Shell) -> None:
    assert (await shell.run("pwd", folder="sub")).text.startswith(f"{shell.folder}/sub\n")
    assert (await shell.run("cat")).text == "[exit status 0]"
    variables = (await shell.run("env")).text
    assert "hunter2" not in variables
    assert "MYAPP_MODE=test" in variables


@pytest.mark.parametrize("folder", ["..", "/", "missing", "/etc"])
async def test_it_runs_in_no_other_folder(shell: Shell, folder: str) -> None:
    with pytest.raises(UserError):
        await shell.run("pwd", folder=folder)


@pytest.mark.parametrize("argv", [["no-such-program"], [""], ["./missing"], ["a\0b"], ["sub"]])
async def test_a_program_that_is_not_there_is_refused_before_anybody_is_asked(shell: Shell, argv: list[str]) -> None:
    with pytest.raises(UserError):
        await shell.server.preview(RUN_COMMAND, {"argv": argv}, shell.context)


async def test_a_program_of_the_folder_is_run_by_its_path(shell: Shell) -> None:
    script = shell.folder / "sub" / "hello"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    assert (await shell.run("./hello", folder="sub")).text == "hello\n[exit status 0]"


@pytest.mark.parametrize("swapped", ["program", "folder"])
async def test_what_is_swapped_after_it_was_shown_does_not_run(shell: Shell, swapped: str) -> None:
    for name in ("sub", "other"):
        (shell.folder / name).mkdir(exist_ok=True)
        (shell.folder / name / "hello").write_text(f"#!/bin/sh\necho {name}\n")
        (shell.folder / name / "hello").chmod(0o755)
    arguments = {"argv": ["./hello"], "folder": "sub"}
    await shell.server.preview(RUN_COMMAND, arguments, shell.context)
    if swapped == "program":
        (shell.folder / "sub" / "hello").unlink()
        (shell.folder / "sub" / "hello").symlink_to(shell.folder / "other" / "hello")
    else:
        (shell.folder / "sub").rename(shell.folder / "former")
        (shell.folder / "sub").symlink_to("other")
    with pytest.raises(UserError, match="changed after it was shown"):
        await shell.server.call(RUN_COMMAND, arguments, shell.context)


async def test_a_program_that_cannot_be_started_is_an_error(shell: Shell) -> None:
    broken = shell.folder / "broken"
    broken.write_bytes(b"\x7fELFnot")
    broken.chmod(0o755)
    with pytest.raises(UserError, match="cannot be started"):
        await shell.run("./broken")


async def test_output_is_streamed_as_it_comes_without_terminal_sequences(shell: Shell) -> None:
    await shell.python("import time\nfor n in range(3): print('\\x1b[31mline', n, flush=True); time.sleep(0.15)")
    assert len(shell.progress) >= 2
    assert shell.output == "line 0\nline 1\nline 2\n"


async def test_a_command_that_takes_too_long_is_ended_and_its_output_kept(shell: Shell) -> None:
    output = await shell.run("sh", "-c", "echo begun; sleep 100", timeout_s=1)
    assert output.text == "begun\n[stopped: it took more than 1 s]"
    assert output.is_timed_out


async def test_a_flood_of_output_is_ended_and_bounded(shell: Shell) -> None:
    output = await shell.run("sh", "-c", "yes")
    assert "stopped: it wrote more than 64 MiB" in output.text
    assert len(output.text) < 2 << 20
    assert "bytes were left out here" in output.text


async def test_bytes_that_are_no_text_are_replaced(shell: Shell) -> None:
    output = await shell.python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00ok')")
    assert "ok" in output.text
    assert "\ufffd" in output.text


async def _gone(process_id: int) -> bool:
    for _ in range(100):
        if not psutil.pid_exists(process_id) or psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.05)
    return False


_FAMILY = """
import os, subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
                          "time.sleep(100)"], start_new_session={apart})
print(os.getpid(), child.pid, flush=True)
time.sleep({seconds})
"""


@pytest.mark.parametrize("apart", [False, True])
async def test_cancelling_ends_a_command_that_ignores_it_and_its_children(shell: Shell, apart: bool) -> None:
    code = _FAMILY.format(apart=apart, seconds=100)
    running = asyncio.create_task(shell.python(code))
    async with asyncio.timeout(120):
        while "\n" not in shell.output:  # noqa: ASYNC110  (output comes when it comes)
            await asyncio.sleep(0.02)
    ids = [int(word) for word in shell.output.split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [await _gone(process_id) for process_id in ids] == [True, True]


async def test_what_a_command_leaves_behind_is_ended_with_it(shell: Shell) -> None:
    output = await shell.python(_FAMILY.format(apart=False, seconds=0))
    child_id = int(output.text.split()[1])
    assert output.detail == "exit status 0"
    assert await _gone(child_id)


async def test_a_command_that_ends_by_a_signal_says_so(shell: Shell) -> None:
    assert (await shell.run("sh", "-c", "kill -9 $$")).detail == "ended by signal 9"
