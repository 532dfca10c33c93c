"""The clients that install within seconds, against a real service; the others run by `run.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.run import CLIENTS, Client, install, is_in_reach, run, services

SMALL = [client for client in CLIENTS if client.is_small]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with services(tmp_path_factory.mktemp("services")) as urls:
        yield {**urls, "FREE_WITHIN_S": "30"}  # other tests run beside these


@pytest.mark.slow
@pytest.mark.parametrize("client", SMALL, ids=[client.name for client in SMALL])
def test_a_client_gets_every_answer_that_it_asks_for(client: Client, urls: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / client.name
    if reason := install(client, folder):
        assert not is_in_reach(client), f"{client.package} is not installed: {reason}"
        pytest.skip(f"{client.package} is not installed: {reason}")
    assert run(client, folder, urls).fault == ""
