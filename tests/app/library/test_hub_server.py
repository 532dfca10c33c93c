from __future__ import annotations

import os
import random
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.library.hub_faults import FAULTS
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import CERTIFICATE, HubServer
from tests.patience import PATIENCE_S

DATA = random.Random(1).randbytes(300_000)
FILES: dict[str, bytes | Path] = {"m-Q4_0.gguf": DATA, "config.json": b"{}"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(HubRepo.of("org/repo", FILES), HubRepo.of("org/gated", FILES, "manual")) as server:
        yield server


@pytest.fixture
def http(hub: HubServer) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=hub.url, trust_env=False, timeout=PATIENCE_S, headers={"Accept-Encoding": "identity"}
    ) as client:
        yield client


def test_a_file_in_lfs_is_redirected_to_a_storage_that_knows_ranges(hub: HubServer, http: httpx.Client) -> None:
    told = http.get("/org/repo/resolve/main/m-Q4_0.gguf")
    assert (told.status_code, told.headers["x-linked-size"]) == (302, str(len(DATA)))
    url = told.headers["location"]
    assert url.startswith(hub.storage_url)
    part = http.get(url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, DATA[10:20], "bytes 10-19/300000")
    same = http.get(url, headers={"Range": "bytes=299990-", "If-Range": part.headers["etag"]})
    assert (same.status_code, same.content) == (206, DATA[-10:])
    other = http.get(url, headers={"Range": "bytes=10-19", "If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, DATA)
    assert http.get(url, headers={"Range": "bytes=300000-"}).status_code == 416


def test_links_expire(hub: HubServer, http: httpx.Client) -> None:
    url = http.get("/org/repo/resolve/main/m-Q4_0.gguf").headers["location"]
    hub.expire_links()
    assert http.get(url).status_code == 403


def test_a_gated_repository_lets_its_readers_in(hub: HubServer, http: httpx.Client) -> None:
    hub.members |= {"known", "reader"}
    hub.readers.add("reader")
    path = "/org/gated/resolve/main/config.json"
    statuses = {
        token: http.get(path, headers={"Authorization": f"Bearer {token}"}) for token in ("?", "known", "reader")
    }
    assert [reply.status_code for reply in statuses.values()] == [401, 403, 200]
    assert statuses["known"].headers["x-error-code"] == "GatedRepo"
    assert http.get("/api/models/no/where").headers["x-error-code"] == "RepoNotFound"


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_strikes_once_and_is_over(kind: str, hub: HubServer, http: httpx.Client) -> None:
    url = http.get("/org/repo/resolve/main/m-Q4_0.gguf").headers["location"]
    hub.inject(kind, times=1)
    asked = {"Range": "bytes=1000-250000"}
    try:
        struck = http.get(url, headers=asked, timeout=0.5)
        is_right = struck.status_code == 206 and struck.content == DATA[1000:250_001] and "gzip" not in struck.headers
    except httpx.HTTPError:
        is_right = False
    assert not is_right
    hub.injections.clear()  # the rest of a loop
    assert http.get(url, headers=asked).content == DATA[1000:250_001]


@pytest.mark.slow
def test_the_hubs_own_client_reads_it(hub: HubServer, tmp_path: Path) -> None:
    code = """
import sys
from huggingface_hub import HfApi, hf_hub_download
print(hf_hub_download("org/repo", "m-Q4_0.gguf"))
info = HfApi().model_info("org/repo", files_metadata=True)
print([(file.rfilename, file.size, file.lfs and file.lfs.sha256) for file in info.siblings])
print([entry.path for entry in HfApi().list_repo_tree("org/repo")])
print([model.id for model in HfApi().list_models(search="repo", limit=5)])
"""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | own, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    path, siblings, tree, models = done.stdout.splitlines()
    assert Path(path).read_bytes() == DATA
    assert hub.repos["org/repo"].files["m-Q4_0.gguf"].sha256 in siblings
    assert (tree, models) == ("['m-Q4_0.gguf', 'config.json']", "['org/repo']")


def test_under_tls_a_fault_breaks_the_handshake_or_a_record() -> None:
    with (
        HubServer(HubRepo.of("org/repo", FILES), is_tls=True) as hub,
        httpx.Client(base_url=hub.url, verify=ssl.create_default_context(cafile=CERTIFICATE), trust_env=False) as http,
    ):
        url = http.get("/org/repo/resolve/main/m-Q4_0.gguf").headers["location"]
        for stage in ("handshake", "content"):
            hub.inject("tls error", stage=stage)
            with pytest.raises(httpx.TransportError):
                http.get(url)
            assert http.get(url).content == DATA
