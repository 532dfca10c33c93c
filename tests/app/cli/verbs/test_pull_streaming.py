"""`pull --quantize` of a checkpoint in several shards, which is converted while it comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quantizer.system.process import python_command
from quantizer.write.job import JobRequest, run_job
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.seeing_checkpoints import write_seeing

pytestmark = pytest.mark.slow

N_SHARDS = 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = TinyLlama(n_layers=6, n_shards=N_SHARDS, is_in_order=True)
    return made.write(tmp_path_factory.mktemp("checkpoint") / "check")


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What becomes of the checkpoint when all of it is there."""
    output = tmp_path_factory.mktemp("expected") / "m.gguf"
    list(run_job(JobRequest(str(checkpoint), "Q8_0", str(output), 1, is_overwriting=False)))
    return output.read_bytes()


def _is_shard(name: str) -> bool:
    return name.endswith(".safetensors")


class Pulling:
    """A hub with the checkpoint, and pulls of it into a library of their own."""

    def __init__(self, hub: HubServer, environment: Mapping[str, str], folder: Path) -> None:
        self.hub = hub
        self.data = folder / "data"
        kept = {name: value for name, value in environment.items() if not name.startswith("HF_")}
        places = {"LOCALLLM_DATA_DIR": str(self.data), "LOCALLLM_CACHE_DIR": str(folder / "cache")}
        self._environment = {**kept, **places, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf")}
        self.output = self.data / "models" / "org" / "check" / "check-Q8_0.gguf"

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        command = python_command("app.cli.main", "pull", "org/check", "--quantize", "Q8_0", "--json", *arguments)
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, env=self._environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            yield process

    def finished(self, *arguments: str) -> list[dict[str, Any]]:
        """Pull to the end and return what was said."""
        with self.running(*arguments) as process:
            out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return [json.loads(line) for line in out.splitlines()]

    def ended(self, process: subprocess.Popen[str], number: int, n_lines: int) -> str:
        """Send a signal to a pull once it said `n_lines`, and return its errors."""
        assert process.stdout is not None
        for _ in range(n_lines):
            process.stdout.readline()
        os.kill(process.pid, number)
        return process.communicate(timeout=30)[1]

    def disk_bytes(self) -> int:
        """What lies in the data folder, but for what fits in a block or two."""
        total = 0
        for path in self.data.rglob("*"):
            try:
                total += path.stat().st_blocks * 512 if path.is_file() else 0
            except FileNotFoundError:  # it went just now
                continue
        return total

    def is_clear(self) -> bool:
        """Whether nothing lies there but the model."""
        return [path for path in self.data.rglob("*") if path.is_file()] == [self.output]


@pytest.fixture
def pulling(environment: Mapping[str, str], checkpoint: Path, tmp_path: Path) -> Iterator[Pulling]:
    with HubServer(HubRepo.of("org/check", {path.name: path for path in checkpoint.iterdir()})) as hub:
        yield Pulling(hub, environment, tmp_path)


def test_shards_are_converted_as_they_come_and_go_when_they_are_done_with(pulling: Pulling, expected: bytes) -> None:
    pulling.hub.bytes_per_s = 4 << 20
    said, most = [], 0
    with pulling.running("--remove-checkpoint") as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(json.loads(line))
            most = max(most, pulling.disk_bytes())
    assert pulling.output.read_bytes() == expected
    assert pulling.is_clear()
    kinds = [event["event"] for event in said]
    made = [index for index, event in enumerate(said) if event["event"] == "converting" and event["n_written"]]
    begun = [index for index, event in enumerate(said) if event["event"] == "fetching" and _is_shard(event["name"])]
    assert len(begun) == N_SHARDS
    assert sum(index < begun[-1] for index in made) > len(made) // 2
    assert kinds[-2:] == ["done", "quantized"]
    peak = next(event["peak_disk_bytes"] for event in said if event["event"] == "converting")
    n_checkpoint = sum(file.n_bytes for file in pulling.hub.repos["org/check"].files.values())
    small = 200_000  # the tokenizer, heads, journals
    assert most <= peak + small
    assert peak < len(expected) + 0.6 * n_checkpoint


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_a_pull_that_is_killed_at_any_moment_goes_on_to_the_same_bytes(pulling: Pulling, expected: bytes) -> None:
    pulling.hub.bytes_per_s = 8 << 20
    n_weights = sum(f.n_bytes for f in pulling.hub.repos["org/check"].files.values() if _is_shard(f.path))
    for n_lines in (12, 30):
        with pulling.running("--remove-checkpoint") as process:
            pulling.ended(process, signal.SIGKILL, n_lines)
    pulling.hub.bytes_per_s = 0
    if not pulling.output.exists():
        pulling.finished("--remove-checkpoint")
    assert pulling.output.read_bytes() == expected
    assert pulling.is_clear()
    assert pulling.hub.n_sent() < 2 * n_weights


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_ctrl_c_keeps_what_was_made_of_shards_that_went(pulling: Pulling, expected: bytes) -> None:
    pulling.hub.bytes_per_s = 4 << 20
    with pulling.running("--remove-checkpoint") as process:
        assert process.stdout is not None
        while not (said := json.loads(process.stdout.readline())).get("n_written"):
            pass
        errors = pulling.ended(process, signal.SIGINT, 1)
        assert (process.returncode, "Traceback" in errors) == (130, False)
    assert said["event"] == "converting"
    assert not pulling.output.exists()
    pulling.hub.bytes_per_s = 0
    made = pulling.finished("--remove-checkpoint")[-1]
    assert made["resumed_tensors"] >= 1
    assert pulling.output.read_bytes() == expected
    assert pulling.is_clear()


def test_a_shard_is_not_read_before_its_hash_is_right(pulling: Pulling, expected: bytes) -> None:
    pulling.hub.inject("bit flip", times=2, skip=N_SHARDS + 1, at=0.9)  # the heads and a shard come right
    with pulling.running("--remove-checkpoint") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "wrong hash" in errors
    assert not pulling.output.exists()
    pulling.hub.injections.clear()
    pulling.finished("--remove-checkpoint")
    assert pulling.output.read_bytes() == expected


def test_a_model_that_sees_comes_with_its_projector(environment: Mapping[str, str], tmp_path: Path) -> None:
    seeing = write_seeing(tmp_path / "check", "gemma3-seeing")
    (tmp_path / "expected").mkdir()
    list(run_job(JobRequest(str(seeing), "Q8_0", str(tmp_path / "expected" / "m.gguf"), 1, is_overwriting=False)))
    with HubServer(HubRepo.of("org/check", {path.name: path for path in seeing.iterdir()})) as hub:
        pulling = Pulling(hub, environment, tmp_path)
        made = pulling.finished("--remove-checkpoint")[-1]
    projector = pulling.output.with_name("mmproj-check-F16.gguf")
    assert Path(made["projector"]) == projector
    assert sorted(path for path in pulling.data.rglob("*") if path.is_file()) == [pulling.output, projector]
    assert pulling.output.read_bytes() == (tmp_path / "expected" / "m.gguf").read_bytes()
    assert projector.read_bytes() == (tmp_path / "expected" / "mmproj-m-F16.gguf").read_bytes()


def test_a_projector_is_left_out_on_request_and_stays_for_another_type(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    seeing = write_seeing(tmp_path / "check", "smolvlm")
    with HubServer(HubRepo.of("org/check", {path.name: path for path in seeing.iterdir()})) as hub:
        pulling = Pulling(hub, environment, tmp_path)
        projector = pulling.output.with_name("mmproj-check-F16.gguf")
        assert pulling.finished("--projector", "none")[-1]["projector"] is None
        assert not projector.exists()
        assert pulling.finished("--remove-checkpoint", "--overwrite")[-1]["files"] == 2
        first = projector.read_bytes()
        pulling.output.unlink()
        assert pulling.finished("--remove-checkpoint")[-1]["files"] == 1
    assert projector.read_bytes() == first
