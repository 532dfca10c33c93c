"""`localllm outdated`, against a hub on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.small_models import small_model

Run = Callable[..., Any]


def test_a_newer_revision_is_named_with_the_command_that_fetches_it(
    localllm: Run, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = small_model(models / "org" / "repo" / "own.gguf")
    assert localllm("verify", "own").status == 0  # records the hash
    repo = HubRepo.of("org/repo", {"m.gguf": own.read_bytes()})
    with HubServer(repo) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert localllm("pull", "org/repo/m.gguf").status == 0
        assert "m  current\n" in localllm("outdated").out
        repo.put("m.gguf", b"GGUF of tomorrow")
        ran = localllm("outdated")
        assert ran.status == 0
        assert "m  newer, 16 B: localllm pull org/repo/m.gguf\n" in ran.out
        assert "own  unknown: org/repo has no file own.gguf" in ran.out
        (update,) = localllm("outdated", "m", "--json").json["updates"]
        assert (update["state"], update["commit"]) == ("newer", repo.commit)


def test_without_models_of_the_hub_nobody_is_asked(localllm: Run) -> None:
    ran = localllm("outdated")
    assert (ran.status, ran.out) == (0, "No model here is from the hub: there is nothing to compare.\n")
