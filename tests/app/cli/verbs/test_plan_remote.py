from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.app.cli.in_process import run_localllm
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.library.remote_files import hub_file, sparse_model, sparse_shards
from tests.quantizer.gguf_projectors import tiny_projector

MACHINE = ("--vram", "GPU0=8GiB@360GB/s", "--ram", "16GiB@45GB/s")
REPO = "someone/Llama-2-7B-GGUF"


def plan(environment: Mapping[str, str], hub_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {**environment, "HF_ENDPOINT": hub_url, "HF_HOME": environment["LOCALLLM_CACHE_DIR"], "HF_TOKEN": ""}
    return run_localllm(own, "plan", *arguments, *MACHINE)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("hub")
    quants = ("Q8_0", "Q4_K_M", "Q2_K")
    return [sparse_model(folder / f"Llama-2-7B.{quant}.gguf", "llama-2-7b", quant) for quant in quants]


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["{repo}:Q4_K_M", "{repo}/Llama-2-7B.Q4_K_M.gguf", "{url}/{repo}/blob/main/Llama-2-7B.Q4_K_M.gguf"]
)
def test_a_model_of_the_hub_is_planned_from_its_header(
    environment: Mapping[str, str], paths: list[Path], form: str
) -> None:
    with HubServer(HubRepo(REPO, {path.name: hub_file(path) for path in paths})) as hub:
        done = plan(environment, hub.url, form.format(repo=REPO, url=hub.url), "--json")
        assert hub.n_sent() <= 2 << 20
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["verdict"] in ("fits", "tight")
    assert sum(device["weights_bytes"] for device in output["devices"]) == pytest.approx(4.08e9, rel=0.01)
    assert "only the header of Llama-2-7B.Q4_K_M.gguf was read" in output["warnings"][-1]
    assert "formula" in output["warnings"][-1]


@pytest.mark.slow
def test_of_a_repository_the_quant_that_suits_the_machine_is_planned(
    environment: Mapping[str, str], paths: list[Path]
) -> None:
    with HubServer(HubRepo(REPO, {path.name: hub_file(path) for path in paths})) as hub:
        done = plan(environment, hub.url, REPO)
    assert done.returncode == 0, done.stderr
    assert "Llama-2-7B.Q4_K_M.gguf" in done.stdout


@pytest.mark.slow
def test_the_projector_that_a_pull_would_fetch_is_planned(
    environment: Mapping[str, str], paths: list[Path], tmp_path: Path
) -> None:
    projectors = [tiny_projector(tmp_path / f"mmproj-{name}.gguf", n_embd=4096) for name in ("Q8_0", "F16")]
    repo = HubRepo(REPO, {path.name: hub_file(path) for path in (*paths, *projectors)})
    with HubServer(repo) as hub:
        done = plan(environment, hub.url, f"{REPO}:Q4_K_M", "--json")
        without = plan(environment, hub.url, f"{REPO}:Q4_K_M", "--projector", "none", "--json")
    assert done.returncode == 0, done.stderr
    (extra,) = json.loads(done.stdout)["extras"]
    assert (extra["what"], extra["picture_tokens"]) == ("projector mmproj-F16.gguf", 4)
    assert json.loads(without.stdout)["extras"] == []


@pytest.mark.slow
def test_a_projector_of_another_model_on_the_hub_is_not_planned(
    environment: Mapping[str, str], paths: list[Path], tmp_path: Path
) -> None:
    projector = tiny_projector(tmp_path / "mmproj-F16.gguf", n_embd=64)
    with HubServer(HubRepo(REPO, {path.name: hub_file(path) for path in (*paths, projector)})) as hub:
        done = plan(environment, hub.url, f"{REPO}:Q4_K_M", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["extras"] == []


@pytest.mark.slow
def test_a_split_model_at_a_url_is_planned_whole(environment: Mapping[str, str], tmp_path: Path) -> None:
    parts = sparse_shards(tmp_path / "m.gguf", "llama-2-7b", "Q4_K_M", 2)
    with HubServer(HubRepo(REPO, {path.name: hub_file(path) for path in parts})) as hub:
        url = f"{hub.url}/{REPO}/resolve/main/{parts[0].name}"
        done = plan({**environment}, "https://elsewhere.invalid", url, "--json")
    assert done.returncode == 0, done.stderr
    weights = sum(device["weights_bytes"] for device in json.loads(done.stdout)["devices"])
    assert weights == pytest.approx(4.08e9, rel=0.01)


def test_without_a_network_the_error_names_what_works(environment: Mapping[str, str]) -> None:
    done = plan(environment, "http://127.0.0.1:9", REPO)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: 127.0.0.1 cannot be reached")
    assert "works offline" in done.stderr


@pytest.mark.parametrize("name", ["nothing-here", "folder/missing.gguf", "./missing.gguf"])
def test_what_cannot_be_on_a_hub_is_not_asked_for_there(environment: Mapping[str, str], name: str) -> None:
    with HubServer() as hub:
        done = plan(environment, hub.url, name)
        assert not hub.log
    assert done.returncode == 1
    assert "There is no" in done.stderr
