"""The executor: variables, arguments for batch files, the key, the folder and the terminal of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.cli.verbs.launch import result_json, result_lines
from app.client.service_client import ServiceClient
from app.launch.agents import FOLDER, KEY, Agent, Start, Target, TargetModel, agent_named
from app.launch.plan import LaunchPlan, ModelFacts, plan_launch
from app.launch.run import (
    Installed,
    LaunchResult,
    MissingAgentError,
    check_shim,
    environment_of,
    find_agent,
    run_launch,
)
from app.protocol.errors import ServiceError
from app.protocol.status import MeteredKey, MeteredUsage
from quantizer.system.errors import UsageError
from tests.app.client.scripted_client import ScriptedClient

_SEES = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['SEEN'], 'w'))"
_PATH = {"PATH": "/usr/bin:/bin"}


def _plan(*arguments: str, start: Start | None = None) -> LaunchPlan:
    own = start or Start(environment={"THE_KEY": KEY}, removed=("MINE",))
    agent = Agent(name="script", title="Script", api="", start=lambda _: own, needs_tools=False)
    return plan_launch(agent, sys.executable, "http://127.0.0.1:9", ModelFacts(id="m", n_ctx=4096), arguments)


def _client(**what: Any) -> ServiceClient:
    client = ScriptedClient()
    for name, value in what.items():
        setattr(client, name, value)
    return cast("ServiceClient", client)


async def test_the_agent_gets_the_key_and_the_folder_and_both_end_with_it(tmp_path: Path) -> None:
    start = Start(
        arguments=("-c", _SEES, f"{FOLDER}/note"),
        environment={"THE_KEY": KEY, "PLACE": f"{FOLDER}/note", "SEEN": str(tmp_path / "seen")},
        files={"note": "text"},
    )
    client = _client(metered=MeteredUsage(n_answers=1))
    result = await run_launch(client, _plan("-x", start=start), _PATH)
    (first, last), variables = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    assert variables["THE_KEY"] == "llm-run-secret"
    assert first == variables["PLACE"]
    assert last == "-x"
    assert not Path(first).parent.exists()
    assert (result.status, result.usage) == (0, MeteredUsage(n_answers=1))
    assert cast("ScriptedClient", client).n_keys == 0


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", 137)])
async def test_the_exit_status_is_the_agents(code: str, status: int) -> None:
    assert (await run_launch(_client(), _plan("-c", code), _PATH)).status == status


async def test_without_a_key_nothing_is_started(tmp_path: Path) -> None:
    async def refused() -> AsyncGenerator[MeteredKey, None]:
        raise ServiceError("No localllm service answers.")
        yield

    made = tmp_path / "made"
    with pytest.raises(ServiceError):
        await run_launch(_client(metered_key=refused), _plan("-c", f"open({str(made)!r}, 'w')"), _PATH)
    assert not made.exists()


async def test_a_service_that_ended_meanwhile_is_told_and_the_run_counts() -> None:
    async def gone(_: str) -> MeteredUsage:
        raise ServiceError("No localllm service answers.")

    plan = _plan("-c", "")
    result = await run_launch(_client(metered_usage=gone), plan, _PATH)
    assert (result.status, result.usage) == (0, None)
    assert list(result_lines(plan, result)) == ["The service ended while Script ran: nobody counted its requests."]
    assert result_json(plan, result)["usage"] is None


def test_what_a_run_used_is_told_in_two_lines() -> None:
    usage = MeteredUsage(
        n_answers=4,
        n_failed=1,
        n_prompt_tokens=40_000,
        n_cached_tokens=30_000,
        n_output_tokens=204,
        prefill_s=20.0,
        decode_s=10.0,
        first_token_s=0.5,
        n_first_prompt_tokens=9000,
        n_first_cached_tokens=8000,
    )
    assert list(result_lines(_plan(), LaunchResult(0, 60.0, usage))) == [
        "Script with m: 4 answers, 40,000 prompt tokens, 30,000 (75%, 71% of those after the first prompt)"
        " reused from the cache, 204 tokens generated.",
        "first token after 0.50 s (median) · prefill 500.0 tok/s · decode 20.0 tok/s"
        " · it began with 9,000 tokens, 8,000 of them reused",
        "1 request was refused.",
    ]


def test_variables_that_would_lead_elsewhere_are_not_inherited_and_a_proxy_is_not_asked_for_this_machine() -> None:
    inherited = {"MINE": "1", "OTHER": "2", "http_proxy": "http://proxy"}
    variables = environment_of(_plan(), "secret", "/folder", inherited)
    assert variables == {
        "OTHER": "2",
        "http_proxy": "http://proxy",
        "THE_KEY": "secret",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
    }
    assert "NO_PROXY" not in environment_of(_plan(), "secret", "/folder", {"OTHER": "2"})


def test_a_model_called_like_the_key_gets_none_in_an_argument() -> None:
    named = Start(arguments=("--model", Target("", TargetModel(KEY, 1)).model), environment={"THE_KEY": KEY})
    assert _plan(start=named).command[1:] == ("--model", KEY), "run_launch replaces only the folder in arguments"


@pytest.mark.parametrize("argument", ['say "hi"', "50%", "a & b", "a|b", "a\nb", "^", "!"])
def test_a_batch_file_is_not_given_what_it_would_take_for_something_else(argument: str) -> None:
    with pytest.raises(UsageError, match="batch file"):
        check_shim(("C:\\npm\\claude.CMD", "-p", argument))
    check_shim(("/usr/bin/claude", "-p", argument))
    check_shim(("C:\\npm\\claude.cmd", "--settings", "C:\\Users\\Ada L\\settings.json"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no terminal modes")
def test_an_agent_that_leaves_the_terminal_raw_is_cleaned_up_after() -> None:
    inner = (
        "import sys, termios, tty\n"
        "from app.launch.run import _terminal_modes_restored\n"
        "with _terminal_modes_restored():\n"
        "    tty.setraw(0)\n"
        "    assert not termios.tcgetattr(0)[3] & termios.ECHO\n"
        "print('ECHO' if termios.tcgetattr(0)[3] & termios.ECHO else 'RAW')\n"
    )
    outer = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {inner!r}]))"
    ran = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran
    assert "ECHO" in ran.stdout


def test_the_secret_is_no_part_of_a_plan() -> None:
    assert replace(_plan()).environment == {"THE_KEY": KEY}


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _agent(name: str) -> Agent:
    agent = agent_named(name)
    assert agent is not None
    return agent


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")  # finding it must not run it
    path.chmod(0o755)
    return path


def _package(folder: Path, name: str, version: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": name, "version": version}), encoding="utf-8")


def test_a_command_that_is_not_on_the_path_is_missing_with_how_to_install_it(bin_folder: Path) -> None:
    assert find_agent(_agent("claude")) is None
    assert "uv tool install --python 3.12 aider-chat" in str(MissingAgentError(_agent("aider")))
    assert str(MissingAgentError(_agent("zed"))).endswith("To use it, see https://zed.dev/download.")


def test_the_version_of_npm_is_above_the_file_that_its_link_leads_to(bin_folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "@openai" / "codex"
    _package(package, "@openai/codex", "0.169.0")
    _package(tmp_path / "lib", "something-else", "9.9")
    (bin_folder / "codex").symlink_to(_executable(package / "bin" / "codex.js"))
    assert find_agent(_agent("codex")) == Installed(str(bin_folder / "codex"), "0.169.0")


def test_the_version_beside_a_batch_file_of_npm_is_found(bin_folder: Path) -> None:
    command = _executable(bin_folder / "pi")
    _package(
        bin_folder / "node_modules" / "@earendil-works" / "pi-coding-agent", "@earendil-works/pi-coding-agent", "1.0"
    )
    assert find_agent(_agent("pi")) == Installed(str(command), "1.0")


@pytest.mark.parametrize("site", ["lib/python3.12/site-packages", "Lib/site-packages"])
def test_the_version_of_a_python_tool_is_in_its_environment(bin_folder: Path, tmp_path: Path, site: str) -> None:
    tool = tmp_path / "tools" / "aider-chat"
    (tool / site / "aider_chat-0.86.2.dist-info").mkdir(parents=True)
    (bin_folder / "aider").symlink_to(_executable(tool / "bin" / "aider"))
    assert find_agent(_agent("aider")) == Installed(str(bin_folder / "aider"), "0.86.2")


@pytest.mark.parametrize("version", [None, 7, "1.0\x1b[31m", "x" * 80])
def test_a_version_that_is_none_is_unknown(bin_folder: Path, version: object) -> None:
    _executable(bin_folder / "codex")
    _package(bin_folder / "node_modules" / "@openai" / "codex", "@openai/codex", version)
    found = find_agent(_agent("codex"))
    assert found is not None
    assert found.version == ""


def test_a_damaged_package_file_makes_the_version_unknown(bin_folder: Path) -> None:
    _executable(bin_folder / "codex")
    (bin_folder / "package.json").write_text("{", encoding="utf-8")
    found = find_agent(_agent("codex"))
    assert found is not None
    assert found.version == ""


def test_a_command_goes_by_another_name_on_some_systems(bin_folder: Path) -> None:
    found = find_agent(_agent("zed")), _executable(bin_folder / "zeditor"), find_agent(_agent("zed"))
    assert found[0] is None
    assert found[2] == Installed(str(found[1]), "")
