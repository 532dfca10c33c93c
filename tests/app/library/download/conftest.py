"""A hub with one file of some parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

from fetching import NAME, REPO, noise  # noqa: E402
from hub_repos import HubRepo  # noqa: E402
from hub_server import HubServer  # noqa: E402

DATA = noise(9 << 20)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(HubRepo.of(REPO, {NAME: DATA})) as server:
        yield server


@pytest.fixture
def data() -> bytes:
    return DATA
