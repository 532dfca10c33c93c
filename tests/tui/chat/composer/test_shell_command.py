"""`!command` runs what the person typed, and nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from quantizer.system.process import is_process_alive
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.patience import PATIENCE_S
from tests.tui.conftest import _key_event
from tui.chat.composer.shell_command import run_shell_command, shell_command

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "SHELL"}
PRINTS = "echo one; echo two; exit 3" if sys.platform != "win32" else "echo one& echo two& exit 3"
posix = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of POSIX")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("!ls", "ls"),
        ("! ls -l ", "ls -l"),
        ("!", ""),
        ("!  ", ""),
        (" !ls", ""),
        ("!ls\nrm x", ""),
        ("!ls\n", "ls"),
        ("why !ls", ""),
        ("/ls", ""),
    ],
)
def test_a_command_is_one_line_that_begins_with_the_sign(text, command):
    assert shell_command(text) == command


async def test_output_comes_as_it_is_written_and_is_offered_with_the_exit_status(tmp_path):
    seen: list[str] = []
    done = await run_shell_command(PRINTS, tmp_path, seen.append)
    assert done.output.split() == ["one", "two"]
    assert "".join(seen).split() == ["one", "two"]
    assert (done.status, done.how) == (3, "exit status 3")
    assert done.attachment is not None
    assert done.attachment.content.split("\n")[-1] == "[exit status 3]"


@posix
async def test_it_is_the_persons_shell_with_the_usual_variables_and_no_terminal(tmp_path):
    environment = {**ENVIRONMENT, "SHELL": "/bin/sh", "OWN": "here", "MYSQL_PWD": "hunter2"}
    command = "echo $OWN $PAGER; pwd; read x || echo no input; env"
    done = await run_shell_command(command, tmp_path, lambda _: None, environment, ["OWN"])
    assert done.output.split("\n")[:3] == ["here cat", str(tmp_path.resolve()), "no input"]
    assert "hunter2" not in done.output
    assert done.how == "exit status 0"


@posix
async def test_a_command_that_names_a_variable_which_it_does_not_get_says_so(tmp_path):
    environment = {**ENVIRONMENT, "SHELL": "/bin/sh", "AWS_PROFILE": "work"}
    done = await run_shell_command('echo "[$AWS_PROFILE] $PWD"', tmp_path, lambda _: None, environment)
    assert done.output.startswith("[] ")
    assert done.how == "exit status 0; not passed: AWS_PROFILE (command_variables adds names)"


@posix
async def test_nothing_of_its_output_is_obeyed_and_much_of_it_is_bounded(tmp_path):
    done = await run_shell_command("printf '\\033]52;c;x\\007\\033[31mred\\n'", tmp_path, lambda _: None, ENVIRONMENT)
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    long = await run_shell_command("yes | head -c 3000000", tmp_path, lambda _: None, ENVIRONMENT)
    assert len(long.output) < 1_100_000
    assert "bytes were left out here" in long.output


@posix
async def test_stopping_ends_all_that_it_started(tmp_path):
    task = asyncio.create_task(
        run_shell_command(f"sleep 600 & echo $! > {tmp_path}/pid; wait", tmp_path, lambda _: None, ENVIRONMENT)
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENCE_S)  # it was killed; the system may take a moment


@posix
@pytest.mark.parametrize("n_steps", [1, 2, 3, 5, 9])
async def test_a_command_that_is_stopped_while_it_starts_leaves_nothing(tmp_path, n_steps):
    seconds = f"600.{n_steps}{os.getpid()}"
    task = asyncio.create_task(
        run_shell_command(f"sleep {seconds} & sleep {seconds}", tmp_path, lambda _: None, ENVIRONMENT)
    )
    for _ in range(n_steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = [each for each in psutil.process_iter(["cmdline"]) if seconds in (each.info["cmdline"] or ())]
    assert psutil.wait_procs(left, 60)[1] == []


@pytest.mark.slow
async def test_the_output_is_seen_and_goes_with_the_next_question_only(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("!echo h$((40+2))i" if sys.platform != "win32" else "!echo h42i")
        await user.presses("enter")
        await user.sees("h42i", "exit status 0", "[!echo h")
        assert client.requests == []
        await user.asks("Why?")
        await user.sees("Hello.")
    assert "h42i" in client.requests[0][0].content


@pytest.mark.slow
async def test_one_key_removes_the_output_from_the_next_question(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("!echo seen")
        await user.presses("enter")
        await user.sees("[!echo")
        await user.presses("backspace")
        await user.no_longer_sees("[!echo")
        await user.asks("Why?")
        await user.sees("Hello.")
    assert "seen" not in client.requests[0][0].content


@pytest.mark.slow
@posix
@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_escape_stops_it_and_not_the_answer(open_app, tmp_path, key):
    client = ScriptedClient(ScriptedReply(deltas=("half", "never"), pause_after=1))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("half")
        await user.types(f"!sleep 600; touch {tmp_path}/after")
        await user.presses("enter")
        await user.sees("running: Esc stops it")
        await user.presses(key)
        await user.sees("· stopped")
        assert client.n_aborted == 0
        await user.presses("escape")
        await user.sees("stopped", "ready")
    assert client.n_aborted == 1
    assert not (tmp_path / "after").exists()


@pytest.mark.slow
@posix
async def test_leaving_the_app_or_the_chat_ends_it(open_app, tmp_path):
    for how in ("ctrl+n", "ctrl+q"):
        async with open_app(ScriptedClient()) as user:
            await user.types(f"!echo $$ > {tmp_path}/{how}; sleep 600")
            await user.presses("enter")
            await user.sees("running: Esc stops it")
            await user.until(lambda how=how: (tmp_path / how).exists() and (tmp_path / how).read_text(), "not begun")
            await user.presses(how)
            pid = (tmp_path / how).read_text().strip()
            if how == "ctrl+n":
                await user.until(lambda pid=pid: not is_process_alive(pid), "still there")
        assert not is_process_alive(pid)


def _marked(folder: Path) -> str:
    return f"!touch {folder}/ran"


async def _is_not_run(user, folder: Path, words: str) -> None:
    await user.sees(words)
    await user.pilot.pause(0.1)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_pasted_line_never_runs(open_app, tmp_path, end):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.pastes(_marked(tmp_path) + end)
        await user.presses("enter")
        if not end:
            await _is_not_run(user, tmp_path, "What was pasted is not run")
            assert client.requests == []
        assert not (tmp_path / "ran").exists()


@pytest.mark.slow
async def test_a_command_pasted_behind_a_typed_sign_never_runs_nor_is_asked(open_app, tmp_path):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("!")
        await user.pastes(_marked(tmp_path)[1:])
        await user.presses("enter")
        await _is_not_run(user, tmp_path, "What was pasted is not run")
        user.app.copy_to_clipboard(_marked(tmp_path))
        await user.presses("ctrl+c", "ctrl+v", "enter")
        await _is_not_run(user, tmp_path, "What was pasted is not run")
        assert client.requests == []


@pytest.mark.slow
async def test_a_paste_without_its_marks_does_not_run_at_its_own_enter(open_app, tmp_path):
    async with open_app(ScriptedClient()) as user:
        await user.types("x")
        await user.presses("backspace")
        keys = {"!": "exclamation_mark", " ": "space", "/": "slash", "_": "underscore", "-": "minus"}
        for key in (*_marked(tmp_path), "enter"):
            user.app._driver.send_message(_key_event(user.app, keys.get(key, key)))
        await _is_not_run(user, tmp_path, "came all at once")
        await user.presses("enter")
        await user.sees("exit status 0")
        assert (tmp_path / "ran").exists()


@pytest.mark.slow
async def test_a_question_that_was_recalled_is_not_run_but_a_command_is(open_app, tmp_path):
    async with open_app(ScriptedClient()) as user:
        await user.types("!echo x >> ran" if sys.platform == "win32" else f"!echo x >> {tmp_path}/ran")
        await user.presses("enter")
        await user.sees("exit status 0")
        await user.presses("up", "enter")
        await user.until(lambda: (tmp_path / "ran").read_text().split() == ["x", "x"], "it did not run again")


async def test_a_space_makes_it_a_question(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks(" !important: is it so?")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "!important: is it so?"
