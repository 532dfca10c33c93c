"""A verb as the service runs it: `python -m app.cli.job_process`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.cli.output.format import JobEvents
from app.cli.output.progress import EventBar
from quantizer.system.process import python_command
from tests.app import fork_server
from tests.app.small_models import small_model
from tests.patience import PATIENCE_S

_INTERRUPTED = 130


class Heard(JobEvents):
    """Keeps what would be said."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def emit(self, **line: object) -> None:
        self.lines.append(line)


def job(environment: Mapping[str, str], *words: str) -> subprocess.Popen[bytes]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(python_command("app.cli.job_process", *words), env=environment, **pipes)


def _said(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a job says until its end; the service is there all the time."""
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout.read(), process.stderr.read()


def test_a_bar_emits_at_most_ten_lines_a_second_and_always_the_last_one() -> None:
    heard, now_s = Heard(), 0.0
    bar = EventBar(heard, "Reading", 1000, is_bytes=True, now=lambda: now_s)
    bar.begin()
    for n_done in range(1, 1001):
        now_s += 0.001
        bar.update(n_done=n_done)
    bar.end()
    assert len(heard.lines) <= 12
    assert heard.lines[0] | {"title": "Reading", "n_done": 0, "n_total": 1000, "unit": "bytes"} == heard.lines[0]
    assert (heard.lines[-1]["n_done"], heard.lines[-1]["remaining_s"]) == (1000, 0.0)
    assert heard.lines[-1]["per_s"] == pytest.approx(1000, rel=0.01)


def test_wrong_use_is_an_event_too(environment: Mapping[str, str]) -> None:
    with job(environment, "tune", "--threads=-1", "--", "guide") as process:
        out, errors = _said(process)
    (failed,) = map(json.loads, out.splitlines())
    assert process.returncode == 2
    assert (failed["event"], failed["error"]["kind"]) == ("failed", "UsageError")
    assert "--threads" in failed["error"]["cause"]
    assert b"--threads" in errors


def test_a_verification_reports_its_progress_and_fails_with_what_is_wrong(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    path = small_model(tmp_path / "m.gguf")
    for note in ("recorded now", "is the recorded one"):
        with job(environment, "verify", "--json", "--", str(path)) as process:
            *events, result = map(json.loads, _said(process)[0].splitlines())
        assert process.returncode == 0
        *_, step, last = events
        assert (step["n_done"], step["n_total"]) == (path.stat().st_size, path.stat().st_size)
        assert (last["event"], note in last["text"]) == ("note", True)
        assert result["models"][0]["sha256"]
    data = path.read_bytes()
    with path.open("r+b") as file:  # in place: another file would have no hash to compare with
        file.write(data[:-1] + bytes([data[-1] ^ 1]))
    with job(environment, "verify", "--json", "--", str(path)) as process:
        *_, result, failed = map(json.loads, _said(process)[0].splitlines())
    assert result["models"][0]["state"] == "damaged"
    assert (failed["event"], "is damaged: m.gguf has the SHA-256" in failed["error"]["cause"]) == ("failed", True)


def _judging(environment: Mapping[str, str], folder: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """A job whose own child has begun, and that child."""
    process = job({**environment, "TMPDIR": str(folder)}, "eval", "--json", "--", "guide")
    watched = psutil.Process(process.pid)
    while not (children := [child for child in watched.children() if child.name() != fork_server.NAME]):
        time.sleep(0.01)
    return process, children[0]


@pytest.mark.slow
def test_a_line_from_the_service_is_ctrl_c(environment: Mapping[str, str], tmp_path: Path) -> None:
    process, child = _judging(environment, tmp_path)
    with process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        _, errors = _said(process)
    assert process.returncode == _INTERRUPTED, errors.decode()
    assert b"Traceback" not in errors
    assert not psutil.wait_procs([child], timeout=PATIENCE_S)[1]


@pytest.mark.slow
def test_a_line_that_was_there_before_the_job_began_ends_it_as_well(environment: Mapping[str, str]) -> None:
    with job(environment, "eval", "--json", "--", "guide") as process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        _, errors = _said(process)
    assert process.returncode == _INTERRUPTED, errors.decode()
    assert b"Traceback" not in errors


@pytest.mark.slow
def test_when_the_service_is_gone_the_job_and_its_child_go_too(environment: Mapping[str, str], tmp_path: Path) -> None:
    process, child = _judging(environment, tmp_path)
    with process:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=PATIENCE_S)
    assert not psutil.wait_procs([child], timeout=PATIENCE_S)[1]


@pytest.mark.slow
def test_a_benchmark_reports_its_progress_and_each_figure(environment: Mapping[str, str], tiny_model: Path) -> None:
    words = ("bench", "--json", "--only=prefill,edit", "--runs=1", "--", str(tiny_model))
    with job(environment, *words) as process:
        out, errors = _said(process)
    *steps, last = [line for line in map(json.loads, out.splitlines()) if line.get("event") == "step"]
    assert process.returncode == 0, errors
    assert (steps[0]["n_done"], last["n_done"], last["n_total"]) == (0, 2, 2)
    assert last["title"].startswith("edit"), "the last figure"
