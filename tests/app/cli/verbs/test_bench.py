from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.cli.main import main
from quantizer.system.process import python_command
from tests.app.running import RunningService
from tests.patience import PATIENCE_S


@pytest.fixture
def run_in(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a command run in this process, whose temporary files go to the returned folder."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _status(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as leaving:
        main(["bench", *arguments])
    return leaving.value.code


@pytest.mark.slow
def test_a_model_and_a_server_do_the_same_work_and_nothing_is_left(
    run_in: Path, tiny_model: Path, service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--only", "prefill", "--runs", "1", "--seed", "5", "--json")
    assert _status(str(tiny_model), "--against", f"{service.url}/v1", *options) == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    ours, theirs = data["results"]
    assert (ours["label"], theirs["label"], data["seed"]) == ("tiny", service.url, 5)
    assert [item["case"] for item in ours["measurements"]] == ["512 tokens", "2000 tokens"]
    assert all(item["gain"] > 0 for item in theirs["measurements"])
    assert "prefill 512 tokens" in said.err
    assert list(run_in.iterdir()) == []
    assert all(item["predicted"] > 0 for item in ours["measurements"])
    assert all(item["predicted"] is None for item in theirs["measurements"])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nope",), 1, "no model 'nope'"),
        (("guide", "--only", "juggling"), 2, "no workload juggling"),
        (("guide", "--against", "guide", "--against-model", "x"), 2, "for a server"),
        (("guide", "--runs", "0"), 2, "--runs"),
    ],
)
def test_what_cannot_be_measured_is_an_error_before_anything_starts(
    run_in: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, words: str
) -> None:
    assert _status(*arguments) == status
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_it_reaches_servers_over_http_alone() -> None:
    code = """
import sys
import app.bench.measurement, app.bench.target, app.bench.workloads, app.cli.verbs.bench
print(*(name for name in sys.modules if name.startswith(("app.engine", "app.service", "llama_cpp"))))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_nothing_behind(
    environment: Mapping[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    command = python_command("app.cli.main", "bench", str(tiny_model), "--only", "clients", "--runs", "100")
    with subprocess.Popen(command, env={**environment, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"tiny (tiny)")
        assert list(tmp_path.iterdir()) != []
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 130
        assert process.stderr.read().strip() == b""
    assert list(tmp_path.iterdir()) == []
