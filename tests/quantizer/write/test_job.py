from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.system.errors import EngineError, ErrorInfo, StorageError
from quantizer.write.events import (
    Event,
    JobFailed,
    JobPlanned,
    JobResumed,
    JobWarning,
    OutputDone,
    TensorWritten,
    decode_event,
    encode_event,
)
from quantizer.write.job import JobRequest, run_job
from quantizer.write.partial_output import journal_path, partial_path
from tests.patience import PATIENCE_S
from tests.quantizer.checkpoints import TinyLlama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module")
def slow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that takes seconds to quantize."""
    folder = tmp_path_factory.mktemp("checkpoint") / "slow"
    return TinyLlama(n_layers=4, n_embd=1024, n_ff=2048, n_heads=8, n_kv_heads=8).write(folder)


def request(source: Path, output: Path, file_type: str = "Q4_K_M") -> JobRequest:
    return JobRequest(str(source), file_type, str(output), 1, False)


def test_a_job_reports_its_plan_progress_and_end(tmp_path: Path, checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    events = list(run_job(request(checkpoint, output)))
    planned, done = events[0], events[-1]
    assert isinstance(planned, JobPlanned)
    assert isinstance(done, OutputDone)
    assert planned.n_bytes == done.n_bytes == output.stat().st_size
    assert sum(isinstance(event, TensorWritten) for event in events) == planned.n_tensors


def test_a_job_that_fails_raises_its_own_error_here(tmp_path: Path, checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    output.touch()
    with pytest.raises(StorageError, match="exists already"):
        list(run_job(request(checkpoint, output)))


@pytest.mark.slow
def test_leaving_the_events_cancels_the_job_and_leaves_nothing(tmp_path: Path, slow_checkpoint: Path) -> None:
    events = run_job(request(slow_checkpoint, tmp_path / "m.gguf", "IQ4_XS"))
    assert isinstance(next(events), JobPlanned)
    assert isinstance(next(events), TensorWritten)
    events.close()
    assert not list(tmp_path.iterdir())


def running_job(output: Path) -> psutil.Process:
    """The job that is writing `output`, once it has written a tensor."""
    for _ in range(3000):
        if partial_path(output, 0).exists() and len(journal_path(output).read_bytes().split()) > 1:
            return next(job for job in psutil.process_iter() if is_job(job, output))
        time.sleep(0.02)
    raise AssertionError("no job began")


def is_job(process: psutil.Process, output: Path) -> bool:
    """Whether a process has the journal of `output` open."""
    with suppress(psutil.Error):
        return any(Path(file.path) == journal_path(output) for file in process.open_files())
    return False


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LEFTOVERS = [".m.gguf.0.partial", ".m.gguf.journal", ".m.gguf.lock"]


@pytest.mark.slow
def test_a_job_that_is_killed_is_an_error_with_its_status(tmp_path: Path, slow_checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    events = run_job(request(slow_checkpoint, output, "IQ4_XS"))
    next(events)
    running_job(output).kill()
    with pytest.raises(EngineError, match=r"died \((SIGKILL|exit status)"):
        list(events)
    assert names(tmp_path) == LEFTOVERS


@pytest.mark.slow
def test_a_job_whose_parent_is_killed_dies_too_and_leaves_what_it_wrote(tmp_path: Path, slow_checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    asked = request(slow_checkpoint, output, "IQ4_XS")
    script = f"from quantizer.write import job; list(job.run_job(job.JobRequest(**{dataclasses.asdict(asked)!r})))"
    parent = subprocess.Popen([sys.executable, "-c", script])
    job = running_job(output)
    parent.kill()
    parent.wait()
    psutil.wait_procs([job], timeout=PATIENCE_S)
    assert names(tmp_path) == LEFTOVERS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_the_command_and_leaves_nothing(tmp_path: Path, slow_checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    command = [sys.executable, "-c", "from app.cli.main import main; main()"]
    arguments = ["quantize", str(slow_checkpoint), "IQ4_XS", "-o", str(output)]
    parent = subprocess.Popen([*command, *arguments], start_new_session=True, stderr=subprocess.DEVNULL)
    running_job(output)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(PATIENCE_S) == 130
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_jobs_never_write_the_same_output(tmp_path: Path, slow_checkpoint: Path, checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    first = run_job(request(slow_checkpoint, output, "IQ4_XS"))
    next(first)
    running_job(output)
    with pytest.raises(StorageError, match="Another run is writing"):
        list(run_job(request(checkpoint, output)))
    assert names(tmp_path) == LEFTOVERS
    first.close()


EVENTS = st.one_of(
    st.builds(JobPlanned, st.text(), st.text(), st.integers(0), st.integers(0), st.integers(0), st.integers(1)),
    st.builds(JobResumed, st.integers(0), st.integers(0)),
    st.builds(TensorWritten, st.integers(0), st.text(), st.text(), st.text(), st.integers(0)),
    st.builds(JobWarning, st.text()),
    st.builds(OutputDone, st.text(), st.integers(0), st.floats(0, 1e6)),
    st.builds(JobFailed, st.builds(ErrorInfo, st.text(), st.text(), st.text())),
)


@given(EVENTS)
def test_events_survive_the_pipe(event: Event) -> None:
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


@pytest.mark.parametrize(
    "line", [{}, {"event": "planned"}, {"event": ["done"]}, {"event": "warning", "text": "", "b": 1}, [], 1]
)
def test_a_line_that_is_no_event_is_an_error(line: Any) -> None:
    with pytest.raises(EngineError, match="unknown event"):
        decode_event(line)


def test_the_parents_side_needs_neither_numpy_nor_native_code() -> None:
    script = "import sys, quantizer.write.job; print([m for m in ('numpy', 'gguf', 'llama_cpp') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
