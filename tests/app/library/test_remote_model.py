from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hub_repos import HubRepo
from hub_server import HubServer
from remote_files import hub_file, sparse_model, sparse_shards

from app.library.hub_access import HubAccess, HubError, http_client
from app.library.remote_model import read_remote_model
from quantizer.errors import ModelFileError
from quantizer.gate import admit, tensors_of

MIB = 1 << 20
REPO = "someone/model-GGUF"


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with http_client() as client:
        yield client


def hub_of(*paths: Path, gated: str = "") -> HubServer:
    files = [hub_file(path) for path in paths]
    return HubServer(HubRepo(REPO, {file.path: file for file in files}, gated))


@pytest.mark.parametrize(
    ("outline", "file_type", "has_merges", "most_mib"),
    [
        ("llama-2-7b", "Q5_K_M", False, 2),  # 32,000 tokens
        ("llama-3.1-8b", "Q4_K_M", True, 12),  # 128,256 tokens and twice as many merges
        ("gemma-2-9b", "Q4_K_M", False, 12),  # 256,000 tokens
    ],
)
def test_a_model_of_gigabytes_is_known_from_its_first_bytes(
    tmp_path: Path, http: httpx.Client, outline: str, file_type: str, has_merges: bool, most_mib: int
) -> None:
    path = sparse_model(tmp_path / "model.gguf", outline, file_type, has_merges=has_merges)
    assert path.stat().st_size > 4.7e9
    with hub_of(path) as hub:
        access = HubAccess(hub.url)
        model = read_remote_model(http, access.file_url(REPO, path.name), access)
        assert hub.n_sent() <= most_mib * MIB
    here = admit(path)
    assert (model.header.metadata, model.tensors) == (here.metadata, here.tensors)


def test_a_split_model_is_known_from_the_headers_of_all_its_parts(tmp_path: Path, http: httpx.Client) -> None:
    paths = sparse_shards(tmp_path / "model.gguf", "llama-3.1-8b", "Q8_0", 3)
    with hub_of(*paths) as hub:
        access = HubAccess(hub.url)
        model = read_remote_model(http, access.file_url(REPO, paths[0].name), access)
    assert model.tensors == tensors_of(admit(paths[0]))
    with hub_of(*paths[:2]) as hub, pytest.raises(HubError, match="not there"):
        read_remote_model(http, HubAccess(hub.url).file_url(REPO, paths[0].name), HubAccess(hub.url))


def test_what_is_no_model_is_refused_as_on_the_disk(tmp_path: Path, http: httpx.Client) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>" + bytes(4000))
    with hub_of(tmp_path / "page.gguf") as hub, pytest.raises(ModelFileError, match="not a GGUF file"):
        read_remote_model(http, HubAccess(hub.url).file_url(REPO, "page.gguf"), HubAccess(hub.url))


def test_the_token_is_shown_to_the_hub_and_to_nobody_else(tmp_path: Path, http: httpx.Client) -> None:
    path = sparse_model(tmp_path / "model.gguf", "qwen3-0.6b", "Q8_0")
    with hub_of(path, gated="manual") as hub:
        hub.readers = hub.members = {"secret"}
        read_remote_model(http, HubAccess(hub.url, "secret").file_url(REPO, path.name), HubAccess(hub.url, "secret"))
        assert {entry.headers.get("authorization") for entry in hub.log if entry.origin == "hub"} == {"Bearer secret"}
        assert {entry.headers.get("authorization") for entry in hub.log if entry.origin == "storage"} == {None}
        with pytest.raises(HubError, match="terms") as refused:
            read_remote_model(http, HubAccess(hub.url).file_url(REPO, path.name), HubAccess(hub.url))
        assert "HF_TOKEN" in refused.value.remedy
