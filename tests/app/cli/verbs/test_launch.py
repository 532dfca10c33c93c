"""`localllm launch` with an agent that is a script, against a service with the fake engine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest

from quantizer.system.process import python_command
from tests.app.cli.in_process import run_localllm
from tests.app.running import RunningService
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import N_EMBD, tiny_llama, tiny_weights

_SCRIPT = Path(__file__).parents[2] / "launch" / "fake_agent.py"


@pytest.fixture(scope="module")
def roomy(start_service: Callable[..., RunningService]) -> RunningService:
    """A service whose model has the context of every agent, in bytes as the fake engine counts them."""
    return start_service(ctx="262144")


@pytest.fixture
def around(environment: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment in which the only agent is `claude`, a script, with folders of its own and no service."""
    commands = tmp_path / "bin"
    commands.mkdir()
    script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(_SCRIPT))} "$@"\n'
    _put(commands / "claude", script)
    own = {"PATH": str(commands), "TMPDIR": str(tmp_path / "tmp"), "ANTHROPIC_API_KEY": "sk-mine"}
    (tmp_path / "tmp").mkdir()
    return {**environment, **own, "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"), "LOCALLLM_PORT": "9"}


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _at(service: RunningService, around: dict[str, str]) -> dict[str, str]:
    return {**around, "LOCALLLM_PORT": service.url.rpartition(":")[2]}


def test_agents_are_listed_with_what_they_need_and_none_is_run(around: dict[str, str], tmp_path: Path) -> None:
    package = tmp_path / "bin" / "node_modules" / "@anthropic-ai" / "claude-code"
    package.mkdir(parents=True)
    named = {"name": "@anthropic-ai/claude-code", "version": "2.1.9"}
    (package / "package.json").write_text(json.dumps(named), encoding="utf-8")
    listed = run_localllm(around, "launch")
    assert listed.returncode == 0
    assert f"claude    Claude Code, 2.1.9 at {tmp_path / 'bin' / 'claude'}" in listed.stdout
    assert "codex     Codex, not installed: `npm install -g @openai/codex`" in listed.stdout
    assert "begins with about 13,000 tokens, goes on in 65,536, a model that takes tools" in listed.stdout
    agents = {each["name"]: each for each in json.loads(run_localllm(around, "launch", "--json").stdout)}
    assert (agents["claude"]["version"], agents["claude"]["context"]) == ("2.1.9", 65_536)
    assert agents["codex"]["installed"] is False


def test_an_agent_that_is_not_here_is_not_installed_but_named_with_the_command(around: dict[str, str]) -> None:
    ran = run_localllm(around, "launch", "codex")
    assert ran.returncode == 1
    assert "Codex is not installed" in ran.stderr
    assert "npm install -g @openai/codex" in ran.stderr
    unknown = run_localllm(around, "launch", "clod")
    assert unknown.returncode == 2
    assert "claude, codex, opencode, aider" in unknown.stderr


def test_print_shows_what_would_be_done_and_changes_nothing(around: dict[str, str], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    shown = run_localllm(around, "launch", "claude", "--print", "--model", "guide", "--", "-p", "it's")
    assert shown.returncode == 0, shown.stderr
    assert "# The service at http://127.0.0.1:9 would be started." in shown.stdout
    assert "export ANTHROPIC_MODEL=guide\n" in shown.stdout
    assert 'export ANTHROPIC_AUTH_TOKEN="<key>"\n' in shown.stdout
    assert "unset ANTHROPIC_API_KEY\n" in shown.stdout
    assert shown.stdout.endswith(
        f"{tmp_path / 'bin' / 'claude'} --settings \"<folder>/settings.json\" -p 'it'\"'\"'s'\n"
    )
    assert "sk-mine" not in shown.stdout
    plan = json.loads(run_localllm(around, "launch", "codex", "--print", "--json").stdout)
    assert "not installed" in plan["service"]
    assert plan["environment"] == {"LOCALLLM_RUN_KEY": "<key>"}
    assert sorted(tmp_path.rglob("*")) == before


def test_print_knows_the_running_service_and_its_model(around: dict[str, str], roomy: RunningService) -> None:
    shown = run_localllm({**_at(roomy, around), "LOCALLLM_MODEL": ""}, "launch", "claude", "--print")
    assert f"# The service at {roomy.url} runs already." in shown.stdout
    assert "export ANTHROPIC_MODEL=tiny\n" in shown.stdout
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=262144\n" in shown.stdout


def test_an_agent_gets_its_settings_for_this_run_and_what_it_used_is_reported(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    ran = run_localllm(_at(roomy, around), "launch", "claude", "--", "ask", tmp_path / "seen")
    assert json.loads((tmp_path / "seen").read_text(encoding="utf-8")) == ["tiny"] * 3
    assert ran.returncode == 3, "the agent's own exit status"
    assert "Claude Code with tiny: 3 answers" in ran.stderr
    assert "reused from the cache" in ran.stderr
    assert "first token after" in ran.stderr
    assert "it began with" in ran.stderr
    assert "Small tasks (web pages, titles and agents on Haiku) go to tiny too: " in ran.stderr
    assert ran.stdout == "", "which is the agent's"
    assert list((tmp_path / "tmp").iterdir()) == [], "the files of the run are gone"


def test_the_use_is_reported_as_json_and_the_first_prompt_is_known_at_the_next_run(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    ran = run_localllm(_at(roomy, around), "launch", "claude", "--json", "--", "ask", tmp_path / "seen")
    told = json.loads(ran.stderr.splitlines()[-1])
    assert (told["agent"], told["model"], told["exit_status"], told["n_ctx"]) == ("claude", "tiny", 3, 262_144)
    usage = told["usage"]
    assert (usage["n_answers"], usage["n_failed"], usage["n_output_tokens"]) == (3, 0, 24)
    assert usage["cached_share"] == pytest.approx(usage["n_cached_tokens"] / usage["n_prompt_tokens"])
    assert usage["cached_share"] > 0.5
    again = run_localllm(_at(roomy, around), "launch", "claude", "--print")
    assert f"about {usage['n_first_prompt_tokens']:,} tokens (measured in a run with this model)" in again.stdout


def test_the_key_is_in_the_environment_only_and_files_are_private(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    proxied = {**_at(roomy, around), "HTTPS_PROXY": "http://proxy:8080", "NO_PROXY": "intern"}
    ran = run_localllm(proxied, "launch", "claude", "--", "dump", tmp_path / "seen")
    assert ran.returncode == 0, ran.stderr
    seen = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    variables = seen["environment"]
    key = variables["ANTHROPIC_AUTH_TOKEN"]
    assert key.startswith("llm-run-")
    assert key not in json.dumps(seen["arguments"]) + seen["settings"] + ran.stderr
    assert (seen["folder_mode"], seen["file_mode"]) == (0o700, 0o600)
    assert json.loads(seen["settings"])["env"]["ANTHROPIC_MODEL"] == "tiny"
    assert "ANTHROPIC_API_KEY" not in variables, "the user's key would be sent to the service"
    assert variables["NO_PROXY"] == "intern,127.0.0.1,localhost,::1"
    assert seen["is_terminals_group"], "Ctrl-C reaches it from the terminal"
    assert "got no answer with the key of this run" in ran.stderr
    refused = roomy.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert refused.status_code == 200, "no key is required here"


_TEMPLATE = "{% for tool in tools %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"


def _in_library(data: Path, name: str, n_feed_forward: int) -> None:
    """Put a model with wide layers into the library, with a template for tools and 131,072 tokens of training."""
    path = data / "models" / "org" / name / f"{name}.gguf"
    path.parent.mkdir(parents=True)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][gguf.Keys.LLM.CONTEXT_LENGTH.format(arch="llama")].value = 131_072
        writer.kv_data[0][gguf.Keys.LLM.FEED_FORWARD_LENGTH.format(arch="llama")].value = n_feed_forward
        writer.add_chat_template(_TEMPLATE)

    weights = tiny_weights()
    for tensor, array in weights.items():
        if "ffn_" in tensor and array.ndim > 1:
            shape = (n_feed_forward, N_EMBD) if "down" not in tensor else (N_EMBD, n_feed_forward)
            weights[tensor] = np.zeros(shape, np.float16)
    tiny_llama(path, edit, weights)


@pytest.mark.slow
def test_small_tasks_go_to_a_smaller_model_of_the_library_that_fits_beside_the_main_one(
    around: dict[str, str], start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    _in_library(data, "big", 65_536)
    _in_library(data, "little", 4096)
    service = start_service(data_dir=str(data), model="big", ctx="65536")
    at = {**_at(service, around), "LOCALLLM_DATA_DIR": str(data), "LOCALLLM_MODEL": "big"}
    shown = run_localllm(at, "launch", "claude", "--print")
    tasks = "Small tasks (web pages, titles and agents on Haiku)"
    fits = f"{tasks} go to little with 65,536 tokens of context, which fits beside big"
    assert f"# {fits}." in shown.stdout, shown.stdout
    assert "export ANTHROPIC_DEFAULT_HAIKU_MODEL=little\n" in shown.stdout
    loaded = service.http.get("/api/localllm/status").json()["models"]
    assert [model["id"] for model in loaded] == ["big"], "nothing is opened to print"
    ran = run_localllm(at, "launch", "claude", "--yes", "--", "dump", tmp_path / "seen")
    assert fits in ran.stderr
    variables = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))["environment"]
    models = {name: variables[f"ANTHROPIC_{name}"] for name in ("MODEL", "DEFAULT_HAIKU_MODEL", "SMALL_FAST_MODEL")}
    assert models == {"MODEL": "big", "DEFAULT_HAIKU_MODEL": "little", "SMALL_FAST_MODEL": "little"}
    states = {each["id"]: each["state"] for each in service.http.get("/api/localllm/status").json()["models"]}
    assert states == {"big": "ready", "little": "ready"}


def test_the_user_may_choose_the_model_of_small_tasks(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    ran = run_localllm(
        _at(roomy, around), "launch", "claude", "--small-model", "guide", "--", "dump", tmp_path / "seen"
    )
    variables = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))["environment"]
    assert (variables["ANTHROPIC_MODEL"], variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"]) == ("tiny", "guide")
    assert "go to guide, as you chose." in ran.stderr
    same = run_localllm(_at(roomy, around), "launch", "claude", "--small-model", "same", "--print")
    assert "export ANTHROPIC_DEFAULT_HAIKU_MODEL=tiny\n" in same.stdout
    main = run_localllm(_at(roomy, around), "launch", "claude", "--small-model", "tiny", "--print")
    assert (main.stdout, main.returncode) == (same.stdout, 0), "the main one by its name"
    unknown = run_localllm(_at(roomy, around), "launch", "claude", "--small-model", "nothing-like-it", "--print")
    assert unknown.returncode == 1
    assert "nothing-like-it" in unknown.stderr
    useless = run_localllm(around, "launch", "codex", "--small-model", "guide")
    assert useless.returncode == 2
    assert "Codex has no small tasks" in useless.stderr


@pytest.mark.slow
def test_a_service_is_started_for_the_agent_and_ends_with_it(around: dict[str, str], tmp_path: Path) -> None:
    own = {**around, "LOCALLLM_PORT": "0"}
    ran = run_localllm(own, "launch", "claude", "--ctx", "262144", "--", "dump", tmp_path / "seen")
    assert ran.returncode == 0, ran.stderr
    url = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))["environment"]["ANTHROPIC_BASE_URL"]
    port = int(url.rpartition(":")[2])
    assert not [one for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port and not one.raddr]


def test_a_context_that_does_not_suffice_is_refused_unless_the_user_insists(
    around: dict[str, str], service: RunningService, tmp_path: Path
) -> None:
    refused = run_localllm(_at(service, around), "launch", "claude", "--", "dump", tmp_path / "seen")
    assert refused.returncode == 1
    assert "tiny has 4,096 tokens of context" in refused.stderr
    assert "Or try it all the same with --yes." in refused.stderr
    assert not (tmp_path / "seen").exists()
    insisted = run_localllm(_at(service, around), "launch", "claude", "--yes", "--", "dump", tmp_path / "seen")
    assert insisted.returncode == 0
    assert (tmp_path / "seen").exists()


def test_an_agent_that_cannot_start_is_an_error_and_leaves_nothing(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    _put(tmp_path / "bin" / "claude", "\x7fELF no program")
    ran = run_localllm(_at(roomy, around), "launch", "claude")
    assert ran.returncode == 1
    assert "claude cannot be started" in ran.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_editor_without_settings_for_a_run_is_told_what_to_paste(
    around: dict[str, str], roomy: RunningService, tmp_path: Path
) -> None:
    _put(tmp_path / "bin" / "zeditor", f'#!/bin/sh\necho "$@" > {shlex.quote(str(tmp_path / "seen"))}\n')
    ran = run_localllm(_at(roomy, around), "launch", "zed")
    assert ran.returncode == 0
    assert f'"language_models": {{"ollama": {{"api_url": "{roomy.url}"}}}}' in ran.stderr
    assert (tmp_path / "seen").read_text(encoding="utf-8") == "--wait .\n"


def test_an_engine_that_is_not_localllm_is_refused(around: dict[str, str]) -> None:
    ran = run_localllm(around, "launch", "claude", "--connect", "http://127.0.0.1:9")
    assert ran.returncode == 1, "nothing answers there"
    assert "127.0.0.1:9" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_group", "status", "name"),
    [(signal.SIGINT, True, 7, "SIGINT"), (signal.SIGTERM, False, 9, "SIGTERM")],
    ids=["ctrl-c", "kill"],
)
def test_a_signal_is_for_the_agent_to_decide_about(
    around: dict[str, str],
    roomy: RunningService,
    tmp_path: Path,
    number: signal.Signals,
    to_group: bool,
    status: int,
    name: str,
) -> None:
    seen = tmp_path / "seen"
    process = subprocess.Popen(
        python_command("app.cli.main", "launch", "claude", "--", "wait", str(seen)),
        env=_at(roomy, around),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (seen.exists() and seen.read_text(encoding="utf-8") == "ready"):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert seen.read_text(encoding="utf-8") == name
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_the_verb_offers_agents_to_the_shell(around: dict[str, str], monkeypatch: Any) -> None:
    completing = {
        **around,
        "_LOCALLLM_COMPLETE": "bash_complete",
        "COMP_WORDS": "localllm launch cl",
        "COMP_CWORD": "2",
    }
    assert "claude" in run_localllm(completing).stdout
