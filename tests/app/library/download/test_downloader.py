from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fetching import fetch
from hub_faults import FAULTS
from hub_server import HubServer

from app.library.hub_access import HubError


async def test_a_file_comes_whole(hub: HubServer, data: bytes, tmp_path: Path) -> None:
    found, _ = await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data
    assert found == hashlib.sha256(data).hexdigest()
    assert hub.n_sent() == len(data)


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_that_passes_is_overcome(kind: str, hub: HubServer, data: bytes, tmp_path: Path) -> None:
    hub.inject(kind, times=1, skip=1, at=0.7)
    await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_that_stays_leaves_right_bytes_or_an_error(
    kind: str, hub: HubServer, data: bytes, tmp_path: Path
) -> None:
    hub.inject(kind, times=10**6, at=0.0)
    try:
        await fetch(hub, tmp_path / "m")
    except HubError:
        return
    assert (tmp_path / "m").read_bytes() == data
