"""Whether the hub has newer revisions of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.library.hub.access import HubAccess, HubError
from app.library.hub.updates import find_updates, hashed_models
from app.library.local.index import Index
from app.library.local.model_files import ModelRef
from app.protocol.library import ModelUpdate
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer

OLD, NEW = b"GGUF old", b"GGUF newer"
FILES = {"m-Q8_0.gguf": NEW, "same-Q8_0.gguf": OLD, "s-00001-of-00002.gguf": OLD, "s-00002-of-00002.gguf": NEW}
FILES |= {"IQ1/twice-Q8_0.gguf": NEW, "Q8/twice-Q8_0.gguf": OLD}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(HubRepo.of("org/repo", FILES)) as hub:
        yield hub


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "cache") as index:
        yield index


def kept(
    tmp_path: Path, index: Index, name: str, repo: str = "org/repo", *, has_hash: bool = True, is_own: bool = False
) -> ModelRef:
    """A model of the library whose files all have the old content."""
    path = tmp_path / "models" / repo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [name, name.replace("00001", "00002")] if "-of-" in name else [name]
    for each in names:
        path.with_name(each).write_bytes(OLD)
        if has_hash:
            from app.library.local.index import sha256_of

            index.record_sha256(path.with_name(each), sha256_of(path.with_name(each), lambda _: None))
        if not is_own:
            index.record_origin(path.with_name(each), "sha256 of-then 8")
    return ModelRef(name.removesuffix(".gguf"), path, repo)


async def updates(hub: HubServer, index: Index, *refs: ModelRef) -> dict[str, ModelUpdate]:
    found = await find_updates(hashed_models(refs, index), HubAccess(hub.url))
    return {update.id: update for update in found}


async def test_each_model_is_newer_current_or_not_comparable_for_a_reason(hub, index, tmp_path):
    names = ("m-Q8_0.gguf", "same-Q8_0.gguf", "s-00001-of-00002.gguf", "twice-Q8_0.gguf", "made-here-Q4_0.gguf")
    refs = [kept(tmp_path, index, name) for name in names]
    unread = kept(tmp_path / "b", index, "m-Q8_0.gguf", has_hash=False)
    found = await updates(hub, index, *refs)
    assert {name: update.state for name, update in found.items()} == {
        "m-Q8_0": "newer",
        "same-Q8_0": "current",
        "s-00001-of-00002": "newer",
        "twice-Q8_0": "current",
        "made-here-Q4_0": "unknown",
    }
    assert (found["m-Q8_0"].reference, found["m-Q8_0"].n_bytes) == ("org/repo/m-Q8_0.gguf", len(NEW))
    assert found["s-00001-of-00002"].n_bytes == len(NEW)  # of the part that changed
    assert "has no file made-here-Q4_0.gguf" in found["made-here-Q4_0"].reason
    assert len([request for request in hub.log if "/api/models/" in request.path]) == 1  # one repository
    (unknown,) = (await updates(hub, index, unread)).values()
    assert (unknown.state, "verify it" in unknown.reason) == ("unknown", True)


async def test_a_file_of_ones_own_with_the_name_of_one_on_the_hub_is_not_called_old(hub, index, tmp_path):
    own, same = (kept(tmp_path, index, name, is_own=True) for name in ("m-Q8_0.gguf", "same-Q8_0.gguf"))
    found = await updates(hub, index, own, same)
    assert (found["m-Q8_0"].state, found["same-Q8_0"].state) == ("unknown", "current")
    assert "may be your own" in found["m-Q8_0"].reason


async def test_a_repository_that_is_none_of_the_hub_leaves_the_others_compared(hub, index, tmp_path):
    refs = kept(tmp_path, index, "m-Q8_0.gguf"), kept(tmp_path, index, "x.gguf", "me/mine")
    found = await updates(hub, index, *refs)
    assert (found["m-Q8_0"].state, found["x"].state) == ("newer", "unknown")
    assert "me/mine" in found["x"].reason
    (alone,) = (await updates(hub, index, refs[1])).values()
    assert (alone.state, "me/mine" in alone.reason) == ("unknown", True)
    hub.inject("5xx", stage="api", times=99)
    with pytest.raises(HubError, match="cannot be reached"):
        await updates(hub, index, *refs)


async def test_models_of_other_sources_are_not_asked_about(hub, index, tmp_path):
    pulled, loose = kept(tmp_path, index, "m-Q8_0.gguf"), kept(tmp_path, index, "loose.gguf", "folder")
    index.record_origin(pulled.path, "ollama:m:latest sha256:1")
    assert await updates(hub, index, pulled, loose) == {}
    assert not hub.log
