from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quantizer.system.process import python_command
from tests.app.cli.in_process import run_localllm
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama


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
@pytest.mark.slow
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
        process.wait(20)
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
