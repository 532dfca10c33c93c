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
from app.launch.agents import FOLDER, KEY, Agent, Start, Target
from app.launch.plan import LaunchPlan, ModelFacts, plan_launch
from app.launch.run import LaunchResult, check_shim, environment_of, run_launch
from app.protocol.errors import ServiceError
from app.protocol.metering import MeteredKey, MeteredUsage
from quantizer.system.errors import UsageError
from tests.app.client.scripted_client import ScriptedClient

_SEES = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['SEEN'], 'w'))"
_PATH = {"PATH": "/usr/bin:/bin"}


def _plan(*arguments: str, start: Start | None = None) -> LaunchPlan:
    own = start or Start(environment={"THE_KEY": KEY}, removed=("MINE",))
    agent = Agent(
        name="script", title="Script", commands=("script",), install="", api="", start=lambda _: own, needs_tools=False
    )
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
    named = Start(arguments=("--model", Target("", KEY, 1).model), environment={"THE_KEY": KEY})
    assert _plan(start=named).command[1:] == ("--model", KEY), "run_launch replaces only the folder in arguments"


@pytest.mark.parametrize("argument", ['say "hi"', "50%", "a & b", "a|b", "a\nb", "^", "!"])
def test_a_batch_file_is_not_given_what_it_would_take_for_something_else(argument: str) -> None:
    with pytest.raises(UsageError, match="batch file"):
        check_shim(("C:\\npm\\claude.CMD", "-p", argument))
    check_shim(("/usr/bin/claude", "-p", argument))
    check_shim(("C:\\npm\\claude.cmd", "--settings", "C:\\Users\\Ada L\\settings.json"))


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
