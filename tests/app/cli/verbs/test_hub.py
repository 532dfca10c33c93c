from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from quantizer.system.process import python_command
from quantizer.write.job import JobRequest, run_job
from tests.app.cli.in_process import run_localllm
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.patience import PATIENCE_S
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.seeing_checkpoints import write_seeing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("m") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(model: bytes) -> Iterator[HubServer]:
    small, large = {"m-Q4_0.gguf": model}, {"m-Q8_0.gguf": model + bytes(8 << 20)}
    with HubServer(HubRepo.of("org/small", small), HubRepo.of("org/large", large)) as server:
        yield server


@pytest.fixture
def own(environment: Mapping[str, str], hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """An environment with a library of its own, and no other hub than ours."""
    kept = {name: value for name, value in environment.items() if not name.startswith("HF_")}
    places = {"LOCALLLM_DATA_DIR": str(tmp_path / "data"), "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")}
    return {**kept, **places, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}


def pull(own: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_localllm(own, "pull", *arguments)


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_every_event_is_a_line_of_json(own: Mapping[str, str], model: bytes) -> None:
    done = pull(own, "org/small", "--json")
    assert done.returncode == 0, done.stderr
    said = events(done.stdout)
    assert [said[0]["event"], said[1]["event"], said[-1]["event"]] == ["chosen", "fetching", "done"]
    assert Path(said[-1]["path"]).read_bytes() == model
    assert said[-2] | {"bytes_per_s": 0} == {
        "event": "progress",
        "name": "m-Q4_0.gguf",
        "n_bytes": len(model),
        "n_done": len(model),
        "bytes_per_s": 0,
        "remaining_s": None,
    }


def test_the_path_and_the_next_command_are_printed(own: Mapping[str, str]) -> None:
    done = pull(own, "org/small:Q4_0")
    assert done.returncode == 0
    assert "localllm run m:q4_0" in done.stdout
    assert "It was named." in done.stderr


@pytest.fixture
def drafted(hub: HubServer, tmp_path: Path) -> HubRepo:
    """A repository with a model and its draft head."""
    files = {"d-Q8_0.gguf": drafted_model(tmp_path / "d.gguf"), "dflash-d-Q8_0.gguf": tmp_path / "head.gguf"}
    draft_head(tmp_path / "head.gguf", "dflash")
    return hub.repos.setdefault("org/drafted", HubRepo.of("org/drafted", dict(files)))


def test_a_draft_head_comes_with_its_model_and_is_said_at_the_end(own: Mapping[str, str], drafted: HubRepo) -> None:
    done = pull(own, drafted.id)
    assert done.returncode == 0, done.stderr
    assert "is complete. dflash-d-Q8_0.gguf drafts for it. Run it: localllm run d:q8_0" in done.stdout
    listed = json.loads(run_localllm(own, "ls", "--json").stdout)
    assert "dflash" not in json.dumps(listed)
    again = events(pull(own, drafted.id, "--json").stdout)
    kinds = [event["event"] for event in again]
    assert kinds == ["chosen", "done", "chosen", "head_added"]
    assert Path(again[-1]["path"]).name == "dflash-d-Q8_0.gguf"
    assert run_localllm(own, "rm", "d", "--yes").returncode == 0
    assert not Path(again[-1]["path"]).parent.exists()


def test_a_model_comes_alone_with_no_head(own: Mapping[str, str], drafted: HubRepo) -> None:
    kinds = [event["event"] for event in events(pull(own, drafted.id, "--no-head", "--json").stdout)]
    assert kinds[-1] == "done"
    assert "head_added" not in kinds


def test_a_head_of_another_model_is_named_on_stderr_and_the_model_is_there(
    own: Mapping[str, str], drafted: HubRepo, model: bytes
) -> None:
    drafted.put("d-Q8_0.gguf", model)
    done = pull(own, drafted.id)
    assert done.returncode == 0
    assert "d-Q8_0.gguf is complete without its draft head dflash-d-Q8_0.gguf: " in " ".join(done.stderr.split())
    assert "drafts for it" not in done.stdout


@pytest.mark.parametrize(
    ("reference", "status", "words"),
    [
        ("org/nothing:Q4_0", 1, "Check the spelling"),
        ("../etc", 2, "is not a reference to a model"),
        ("no-such-name", 2, "catalogue"),
    ],
)
def test_a_failure_is_a_sentence_and_a_status(own: Mapping[str, str], reference: str, status: int, words: str) -> None:
    done = pull(own, reference)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_the_error_names_what_still_works(own: Mapping[str, str], hub: HubServer) -> None:
    hub.__exit__()
    done = pull(own, "org/small")
    assert done.returncode == 1
    assert "Check the network" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_ctrl_c_keeps_what_came_and_the_next_pull_goes_on(
    own: Mapping[str, str], hub: HubServer, tmp_path: Path
) -> None:
    hub.bytes_per_s = 1 << 20
    with subprocess.Popen(
        python_command("app.cli.main", "pull", "org/large", "--json"),
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        n_seen = next(said["n_done"] for said in map(json.loads, process.stdout) if said.get("n_done", 0) > 1 << 20)
        os.kill(process.pid, signal.SIGINT)
        process.wait(PATIENCE_S)
        assert (process.returncode, process.stderr.read().strip()) == (130, "")
    hub.bytes_per_s = 0
    begun = next(said for said in events(pull(own, "org/large", "--json").stdout) if said["event"] == "fetching")
    assert begun["n_done"] >= n_seen
    assert [path.name for path in (tmp_path / "data" / "models").glob("*/*/*")] == ["m-Q8_0.gguf"]


def test_a_checkpoint_is_fetched_and_made_a_model(own: Mapping[str, str], hub: HubServer, tmp_path: Path) -> None:
    folder = TinyLlama(n_shards=2).write(tmp_path / "checkpoint")
    files = {path.name: path for path in folder.iterdir()}
    hub.repos["org/check"] = HubRepo.of("org/check", {**files, "consolidated.safetensors": b"the same again"})
    done = pull(own, "org/check", "--quantize", "q8_0", "--remove-checkpoint", "--json")
    assert done.returncode == 0, done.stderr
    said = events(done.stdout)
    made = tmp_path / "data" / "models" / "org" / "check" / "check-Q8_0.gguf"
    assert (said[-1]["event"], said[-1]["output"], said[-1]["bytes"]) == ("quantized", str(made), made.stat().st_size)
    assert said[0]["n_files"] == len(files)
    assert "GB while it is fetched" in said[0]["reason"]
    assert not list((tmp_path / "data" / "checkpoints").glob("*/*"))
    again = pull(own, "org/check", "--quantize", "q8_0")
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_the_modules_of_a_checkpoint_come_with_it_and_go_with_it(
    own: Mapping[str, str], hub: HubServer, tmp_path: Path
) -> None:
    folder = TinyLlama().write(tmp_path / "checkpoint")
    files: dict[str, bytes | Path] = {path.name: path for path in folder.iterdir()}
    files |= {"2_Dense/config.json": b"{}", "2_Dense/model.safetensors": folder / "model.safetensors"}
    hub.repos["org/check"] = HubRepo.of("org/check", files)
    assert pull(own, "org/check", "--quantize", "Q8_0").returncode == 0
    kept = tmp_path / "data" / "checkpoints" / "org" / "check"
    assert (kept / "2_Dense" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert pull(own, "org/check", "--quantize", "F16", "--remove-checkpoint").returncode == 0
    assert not list(kept.parent.glob("*"))


def test_a_checkpoint_stays_unless_it_shall_go(own: Mapping[str, str], hub: HubServer, tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "checkpoint")
    hub.repos["org/check"] = HubRepo.of("org/check", {path.name: path for path in folder.iterdir()})
    assert pull(own, "org/check", "--quantize", "Q8_0").returncode == 0
    n_sent = hub.n_sent("storage")
    assert pull(own, "org/check", "--quantize", "F16").returncode == 0
    kept = tmp_path / "data" / "checkpoints" / "org" / "check"
    assert sorted(path.name for path in kept.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert hub.n_sent("storage") == n_sent


@pytest.mark.parametrize(
    ("files", "arguments", "status", "words"),
    [
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, ("--quantize", "Q8_0"), 1, "Pickles"),
        ({"model.safetensors": b"x"}, ("--quantize", "Q8_0"), 1, "no config.json"),
        ({"model.safetensors": b"x", "config.json": b"{}"}, ("--quantize", "Q8_9"), 2, "Q8_0"),
        ({"model.safetensors": b"x", "config.json": b"{}"}, ("--remove-checkpoint",), 2, "--quantize"),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_it_is_fetched(
    own: Mapping[str, str],
    hub: HubServer,
    files: dict[str, bytes | Path],
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    hub.repos["org/bad"] = HubRepo.of("org/bad", files)
    done = pull(own, "org/bad", *arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert hub.n_sent() == 0


def test_help_has_an_example() -> None:
    assert "Example: localllm pull" in pull(os.environ, "-h").stdout


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
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        return [json.loads(line) for line in out.splitlines()]

    def ended(self, process: subprocess.Popen[str], number: int, n_lines: int) -> str:
        """Send a signal to a pull once it said `n_lines`, and return its errors."""
        assert process.stdout is not None
        for _ in range(n_lines):
            process.stdout.readline()
        os.kill(process.pid, number)
        return process.communicate(timeout=PATIENCE_S)[1]

    def disk_bytes(self) -> int:
        """What lies in the data folder, but for what fits in a block or two."""
        total = 0
        for folder, _, names in os.walk(self.data):  # rglob fails where a folder goes meanwhile
            for name in names:
                with suppress(FileNotFoundError):  # it went just now
                    total += Path(folder, name).stat().st_blocks * 512
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
        _, errors = process.communicate(timeout=PATIENCE_S)
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
