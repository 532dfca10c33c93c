"""A hub with one file of some parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.library.fetching import NAME, REPO, noise
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer

DATA = noise(9 << 20)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(HubRepo.of(REPO, {NAME: DATA})) as server:
        yield server


@pytest.fixture
def data() -> bytes:
    return DATA
