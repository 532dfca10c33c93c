from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.library.hub import search as hub_list
from app.library.hub.access import HubAccess, HubError
from app.library.hub.search import list_repos
from quantizer.system.errors import UsageError
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer

LLAMA = {"architectures": ["LlamaForCausalLM"]}


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    repos = [
        HubRepo.of("a/llama-GGUF", {}, tags=["gguf", "license:mit"], downloads=7),
        HubRepo.of("a/llama", {}, gated="auto", tags=["safetensors"], config=LLAMA),
        HubRepo.of("a/llama-odd", {}, tags=["safetensors"], config={"architectures": ["Odd"]}),
        HubRepo.of("a/llama-bare", {}, tags=["safetensors"]),
        HubRepo.of("../../llama", {}, tags=["gguf"]),
    ]
    with HubServer(*repos) as hub:
        yield hub


def test_ggufs_and_convertible_checkpoints_are_listed(hub: HubServer) -> None:
    gguf, checkpoint = list_repos(HubAccess(hub.url), "llama", 10)
    assert (gguf.repo, gguf.is_checkpoint, gguf.n_downloads, gguf.licence) == ("a/llama-GGUF", False, 7, "mit")
    assert (checkpoint.repo, checkpoint.is_checkpoint, checkpoint.is_gated) == ("a/llama", True, True)


def test_trending_ggufs_come_in_the_order_of_the_hub_without_words() -> None:
    scores = {"a/last": 1, "b/first": 30, "c/second": 20}
    repos = [
        HubRepo.of(name, {}, tags=["gguf"], downloads=100 - score, trendingScore=score)
        for name, score in scores.items()
    ]
    checkpoint = HubRepo.of("d/checkpoint", {}, tags=["safetensors"], config=LLAMA, trendingScore=99)
    with HubServer(*repos, checkpoint) as hub:
        found = list_repos(HubAccess(hub.url), "", 2, is_trending=True)
        assert [each.repo for each in found] == ["b/first"]  # the test hub does not filter: the first is a checkpoint
        found = list_repos(HubAccess(hub.url), "", 9, is_trending=True)
        assert [each.repo for each in found] == ["b/first", "c/second", "a/last"]


def test_the_token_is_given_to_the_hub(hub: HubServer) -> None:
    hub.log.clear()
    list_repos(HubAccess(hub.url, "secret"), "llama", 1)
    assert {entry.headers.get("authorization") for entry in hub.log} == {"Bearer secret"}


@pytest.mark.parametrize("kind", ["429", "5xx", "stall", "reset", "tls error", "redirect loop", "416"])
def test_a_search_that_fails_is_not_retried(hub: HubServer, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(hub_list, "_TIMEOUT_S", 0.3)
    hub.inject(kind, stage="list", times=99)
    hub.log.clear()
    with pytest.raises(HubError):
        list_repos(HubAccess(hub.url), "llama", 10)
    hub.injections.clear()
    assert len(hub.log) <= 1 or kind == "redirect loop"  # no retries


def test_a_refused_search_names_who_refused_and_its_status_alone(hub: HubServer) -> None:
    hub.inject("416", stage="list", times=1)
    with pytest.raises(HubError) as refused:
        list_repos(HubAccess(hub.url), "llama", 10)
    assert str(refused.value) == f"{hub.url} refuses the search with status 416. Try again later."
    hub.injections.clear()


@pytest.mark.parametrize("tags", ["gguf", [["gguf"]], None])
def test_what_is_listed_otherwise_than_it_should_be_is_left_out(tags: object) -> None:
    with HubServer(HubRepo.of("a/b", {}, tags=tags, config=[])) as hub:
        assert all(listed.repo == "a/b" for listed in list_repos(HubAccess(hub.url), "b", 10))


@pytest.mark.parametrize("more", [{"tags": 3}, {"tags": ["gguf"], "downloads": "many"}, {"config": 5}])
def test_answers_that_make_no_sense_are_a_sentence(more: dict[str, object]) -> None:
    with HubServer(HubRepo.of("a/b", {}, **more)) as hub, pytest.raises(HubError, match="is invalid"):
        list_repos(HubAccess(hub.url), "b", 10)


@pytest.mark.parametrize("words", ["/home/me/m.gguf", "~/my models/m.gguf", "llama '/home/me/m.gguf'", "C:\\m.gguf"])
def test_a_path_is_never_sent_to_the_hub(hub: HubServer, words: str) -> None:
    hub.log.clear()
    with pytest.raises(UsageError, match="localllm import"):
        list_repos(HubAccess(hub.url), words, 10)
    assert hub.log == []
