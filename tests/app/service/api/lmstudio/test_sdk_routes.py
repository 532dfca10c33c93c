"""What `client.repository` of LM Studio's SDKs 1.5.0 sends to search the hub and download a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.running import RunningService
from tests.app.service.api.lmstudio.sdk_client import SdkClient, connected


@pytest.fixture(scope="module")
def own(
    start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> Iterator[RunningService]:
    """A service that sees no folder of the user's and no other hub than ours."""
    folder = tmp_path_factory.mktemp("hub")
    with HubServer(HubRepo.of("org/tiny-GGUF", {"tiny-Q4_K_M.gguf": tiny_model}, tags=["gguf"])) as hub:
        outside = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HF_HOME": str(folder), "OLLAMA_MODELS": str(folder / "no")}
        yield start_service(outside, data_dir=str(folder / "data"), cache_dir=str(folder / "cache"))


@pytest.fixture
def repository(own: RunningService) -> Iterator[SdkClient]:
    with connected(own.url, "repository") as client:
        yield client


def test_a_model_is_searched_chosen_and_downloaded(own: RunningService, repository: SdkClient) -> None:
    (found,) = repository.result("searchModels", {"opts": {"searchTerm": "tiny", "limit": 5}})["results"]
    assert (found["name"], found["identifier"]) == ("org/tiny-GGUF", {"type": "hf", "identifier": "org/tiny-GGUF"})
    (option,) = repository.result("getModelDownloadOptions", {"modelSearchResultIdentifier": found["identifier"]})[
        "results"
    ]
    assert (option["quantization"], option["downloadIdentifier"]) == ("Q4_K_M", "org/tiny-GGUF:Q4_K_M")
    assert option["fitEstimation"] == "fullGPUOffload"
    assert option["recommended"] is True
    *progress, finalizing, success = repository.packets("downloadModel", {"downloadIdentifier": "org/tiny-GGUF:Q4_K_M"})
    assert {packet["type"] for packet in progress} <= {"downloadProgress"}
    assert finalizing == {"type": "startFinalizing"}
    with connected(own.url, "system") as system:
        keys = [model["modelKey"] for model in system.result("listDownloadedModels")]
    assert success["defaultIdentifier"] in keys
    again = repository.packets("downloadModel", {"downloadIdentifier": "org/tiny-GGUF:Q4_K_M"})
    assert again[-1] == success


def test_a_search_for_other_formats_finds_nothing(repository: SdkClient) -> None:
    opts = {"searchTerm": "tiny", "compatibilityTypes": ["safetensors"]}
    assert repository.result("searchModels", {"opts": opts}) == {"results": []}


@pytest.mark.slow
def test_what_the_hub_does_not_have_is_an_error(repository: SdkClient) -> None:
    assert "org/no" in str(repository.error("downloadModel", {"downloadIdentifier": "org/none"}))
    assert "\0" not in str(repository.error("downloadModel", {"downloadIdentifier": "\0"}))
    answer = repository.call(
        "getModelDownloadOptions", {"modelSearchResultIdentifier": {"type": "hf", "identifier": "a"}}
    )
    assert answer["error"]["title"]
    assert repository.call("pushArtifact", {"path": "x"})["error"]["title"].startswith("localllm does not have")
