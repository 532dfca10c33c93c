"""Every kind of command on machines where something of the environment is broken: no traceback, and one warning."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.client.launcher import load_model, open_service
from app.protocol.chat import Completed, Message
from app.settings.settings import load_settings
from quantizer.system.process import python_command
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.running import RunningService

WARNING = "Caches cannot be written in"
VERBS = {
    "ls": ("ls",),
    "ls --external": ("ls", "--external"),
    "show": ("show", "guide"),
    "verify": ("verify", "guide"),
    "prune": ("prune", "--dry-run"),
    "import": ("import", "guide", "--as", "org/copy"),
    "plan": ("plan", "guide"),
    "doctor": ("doctor",),
    "recommend": ("recommend",),
    "run": ("run", "-p", "hello"),
}
SLOWEST = {"plan", "recommend", "run"}  # a second of processor time and more
SAY_NOTHING = {"plan", "recommend", "run", "doctor"}  # on stderr: what they compute is complete; or as a problem


def _broken_cache(tmp_path: Path, kind: str) -> Path:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    return tmp_path / "file" if kind == "a file" else tmp_path / "file" / "cache"


@pytest.fixture
def own(environment: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    outside = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "OLLAMA_MODELS": str(tmp_path / "ollama")}
    return {**environment, **outside, "LOCALLLM_DATA_DIR": str(tmp_path / "data")}


@pytest.fixture
def at_service(environment: Mapping[str, str], service: RunningService) -> dict[str, str]:
    return {**environment, "LOCALLLM_PORT": service.url.rpartition(":")[2]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in VERBS for kind in ("below a file", "a file") if kind != "a file" or name not in SLOWEST],
)
def test_a_cache_that_cannot_be_written_is_said_once_and_stops_no_command(
    own: dict[str, str], tmp_path: Path, name: str, kind: str
) -> None:
    cache = _broken_cache(tmp_path, kind)
    done = run_localllm({**own, "LOCALLLM_CACHE_DIR": str(cache)}, *VERBS[name])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(WARNING) == (0 if name in SAY_NOTHING else 1), done.stderr
    if name == "doctor":
        assert f"! {WARNING} {cache}" in done.stdout
        assert "LOCALLLM_CACHE_DIR" in done.stdout
        assert "No problems found" not in done.stdout


@pytest.mark.slow
def test_doctor_names_the_folders_and_the_log(own: dict[str, str], tmp_path: Path) -> None:
    paths = dict(json_of(run_localllm(own, "doctor", "--json"))["paths"])
    assert paths == {
        "data": own["LOCALLLM_DATA_DIR"],
        "cache": own["LOCALLLM_CACHE_DIR"],
        "settings": str(Path(own["LOCALLLM_CONFIG"]).parent),
        "log": str(Path(own["LOCALLLM_CACHE_DIR"]) / "service.log"),
    }
    assert f"data       {own['LOCALLLM_DATA_DIR']}" in run_localllm(own, "doctor").stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSL_CERT_FILE", "/nope.pem"), ("HTTPS_PROXY", "ftp://p"), ("HF_TOKEN", "hé"), ("HF_ENDPOINT", "mirror")],
)
def test_doctor_reports_variables_that_break_the_hub(own: dict[str, str], name: str, value: str) -> None:
    report = json_of(run_localllm({**own, name: value}, "doctor", "--json"))
    assert [problem["what"].split()[0] for problem in report["problems"] if name in problem["what"]] == [name]
    assert report["verdict"] == "problems"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limits")
@pytest.mark.parametrize("verb", [("ls",), ("doctor",), ("verify", "guide")], ids=lambda verb: verb[0])
def test_a_process_that_may_write_no_files_goes_on(own: dict[str, str], tmp_path: Path, verb: tuple[str, ...]) -> None:
    import resource

    done = subprocess.run(
        python_command("tests.app.service_process", *verb),  # `app.cli.main` but for how it measures the memory
        env={**own, "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        check=True,
    )
    assert "ulimit -f" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
async def test_a_service_starts_beside_a_cache_that_cannot_be_written(
    own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    settings = load_settings({"cache_dir": str(_broken_cache(tmp_path, "below a file"))}, own)
    async with open_service(settings) as client:
        await load_model(client, "")
        events = [event async for event in client.chat([Message("user", "hello")])]
        while True:  # it must end
            listed = await client.library.models()
            if listed.is_complete:
                break
            await asyncio.sleep(0.05)
    assert isinstance(events[-1], Completed)
    assert {model.id for model in listed.models} >= {"guide"}


STREAM_VERBS = (("--version",), ("ls",), ("help", "run"), ("run", "-p", "hello"), ("show", "nothing"), ("nonsense",))
FAILING = {"show": 1, "nonsense": 2}  # with what status
has_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")


@pytest.mark.slow
@has_full
@pytest.mark.parametrize("verb", STREAM_VERBS, ids=lambda verb: verb[0])
def test_an_output_that_takes_no_more_is_an_error_and_not_a_traceback(
    at_service: Mapping[str, str], verb: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        command = python_command("tui", *verb)
        done = subprocess.run(
            command, env=at_service, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if verb[0] not in FAILING:  # which say on stderr what is wrong
        assert done.stderr == (
            "Error: The output cannot be written: No space left on device. Free some space, or write elsewhere.\n"
        )


def _written_by(verb: tuple[str, ...]) -> int:
    return 2 if verb[0] in FAILING else 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed by a shell there")
@pytest.mark.parametrize(
    ("verb", "closed"),
    # all of each command's, and alone the one that it writes to; to read nothing is the same for all
    [
        *((verb, (0, 1, 2)) for verb in STREAM_VERBS),
        *((verb, (_written_by(verb),)) for verb in STREAM_VERBS),
        (("ls",), (0,)),
        (("ls",), (2,)),
        (("show", "nothing"), (1,)),
    ],
    ids=str,
)
def test_streams_that_are_closed_at_the_start_change_nothing_else(
    own: dict[str, str], at_service: Mapping[str, str], verb: tuple[str, ...], closed: tuple[int, ...]
) -> None:
    done = subprocess.run(
        python_command("tui", *verb),
        env=own if closed == (0, 1, 2) else at_service,  # a service that is started has them closed too
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: [os.close(descriptor) for descriptor in closed],
    )
    assert done.returncode == FAILING.get(verb[0], 0)
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (1 not in closed and done.returncode == 0)
    assert bool(done.stderr) == (2 not in closed and done.returncode != 0)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="their names are always text")
@pytest.mark.parametrize(
    "words",
    [("run", "caf\udce9", "-p", "hello"), ("run", "-p", "hi", "--system", "caf\udce9"), ("search", "caf\udce9")],
)
def test_an_argument_that_is_not_utf_8_is_a_sentence(own: dict[str, str], words: tuple[str, ...]) -> None:
    done = run_localllm(own, *words)
    assert done.returncode == 2
    assert "UTF-8" in done.stderr
    assert "caf\\udce9" in done.stderr
