from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from app.library.download.http_session import HttpSession, RetryPolicy
from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import HubAccess, HubError, async_http_client
from app.library.hub.remote_model import read_remote_model
from offload.footprint.model import PlannedModel
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.validation import tensors_of, validate_gguf
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.library.remote_files import hub_file, sparse_model, sparse_shards

MIB = 1 << 20
REPO = "someone/model-GGUF"
QUICK = RetryPolicy(n_attempts=3, first_wait_s=0.01, max_wait_s=0.02)


def hub_of(*paths: Path, gated: str = "") -> HubServer:
    files = [hub_file(path) for path in paths]
    return HubServer(HubRepo(REPO, {file.path: file for file in files}, gated))


async def read(hub: HubServer, paths: Iterable[Path], token: str = "") -> PlannedModel:
    access = HubAccess(hub.url, token)
    repo = hub.repos[REPO]
    files = [
        RemoteFile(
            path.name,
            access.file_url(REPO, path.name, repo.commit),
            path.stat().st_size,
            Digest("sha256", repo.files[path.name].sha256),
        )
        for path in paths
    ]
    async with async_http_client(0.5) as http:
        return await read_remote_model(HttpSession(http, access), files, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outline", "file_type", "has_merges", "most_mib"),
    [
        ("llama-2-7b", "Q5_K_M", False, 2),  # 32,000 tokens
        ("llama-3.1-8b", "Q4_K_M", True, 12),  # 128,256 tokens and twice as many merges
        ("gemma-2-9b", "Q4_K_M", False, 12),  # 256,000 tokens
    ],
)
async def test_a_model_of_gigabytes_is_known_from_its_first_bytes(
    tmp_path: Path, outline: str, file_type: str, has_merges: bool, most_mib: int
) -> None:
    path = sparse_model(tmp_path / "model.gguf", outline, file_type, has_merges=has_merges)
    assert path.stat().st_size > 4.7e9
    with hub_of(path) as hub:
        model = await read(hub, [path])
        assert hub.n_sent() <= most_mib * MIB
    here = validate_gguf(path)
    assert (model.header.metadata, model.tensors) == (here.metadata, here.tensors)


@pytest.mark.slow
async def test_a_split_model_is_known_from_the_headers_of_all_its_parts(tmp_path: Path) -> None:
    paths = sparse_shards(tmp_path / "model.gguf", "llama-3.1-8b", "Q8_0", 3)
    with hub_of(*paths) as hub:
        model = await read(hub, paths)
        with pytest.raises(ModelFileError, match="part of a split model"):
            await read(hub, paths[:1])
    assert model.tensors == tensors_of(validate_gguf(paths[0]))


async def test_what_is_no_model_is_refused_as_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>" + bytes(4000))
    with hub_of(tmp_path / "page.gguf") as hub, pytest.raises(ModelFileError, match="not a GGUF file"):
        await read(hub, [tmp_path / "page.gguf"])


async def test_a_header_that_claims_no_end_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "endless.gguf"
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + struct.pack("<Q1sIQ", 1, b"x", 8, 200 * MIB))
        file.truncate(5 << 30)
    with hub_of(path) as hub:
        with pytest.raises(ModelFileError, match="longer than 48 MiB"):
            await read(hub, [path])
        assert hub.n_sent() <= MIB


async def test_the_token_is_sent_to_the_hub_only(tmp_path: Path) -> None:
    path = sparse_model(tmp_path / "model.gguf", "qwen3-0.6b", "Q8_0")
    with hub_of(path, gated="manual") as hub:
        hub.readers = hub.members = {"secret"}
        await read(hub, [path], "secret")
        assert {entry.headers.get("authorization") for entry in hub.log if entry.origin == "hub"} == {"Bearer secret"}
        assert {entry.headers.get("authorization") for entry in hub.log if entry.origin == "storage"} == {None}
        with pytest.raises(HubError, match="terms") as refused:
            await read(hub, [path])
        assert "HF_TOKEN" in refused.value.remedy


@pytest.mark.parametrize(
    "kind", ["truncation", "416", "429", "5xx", "stall", "reset", "tls error", "cross-host redirect", "gzip"]
)
async def test_what_passes_is_tried_again(tmp_path: Path, kind: str) -> None:
    path = sparse_model(tmp_path / "model.gguf", "llama-2-7b", "Q4_K_M")
    with hub_of(path) as hub:
        hub.inject(kind, skip=1)
        assert (await read(hub, [path])).tensors == validate_gguf(path).tensors


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("5xx", "cannot be reached"),
        ("redirect loop", "redirects too often"),
        ("wrong length", "could not be read"),
        ("etag change", "changed"),
    ],
)
async def test_what_does_not_pass_ends_in_a_sentence(tmp_path: Path, kind: str, reason: str) -> None:
    path = sparse_model(tmp_path / "model.gguf", "llama-2-7b", "Q4_K_M")
    with hub_of(path) as hub:
        hub.inject(kind, skip=1, times=99)
        with pytest.raises(HubError, match=reason):
            await read(hub, [path])


async def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = sparse_model(tmp_path / "model.gguf", "llama-2-7b", "Q4_K_M")
    with hub_of(path) as hub:
        hub.repos[REPO].files[path.name].__dict__["sha256"] = "0" * 64
        files = [RemoteFile(path.name, HubAccess(hub.url).file_url(REPO, path.name), 1000, Digest("sha256", "1" * 64))]
        async with async_http_client(0.5) as http:
            with pytest.raises(HubError, match="changed"):
                await read_remote_model(HttpSession(http, HubAccess(hub.url)), files, QUICK)
