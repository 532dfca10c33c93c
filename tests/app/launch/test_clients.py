"""The table of clients, and the page that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.launch.agents import AGENTS
from app.launch.clients import CLIENTS, Client
from app.launch.clients_page import clients_page
from app.launch.editors import EDITORS

PAGE = Path(__file__).parents[3] / "assets" / "docs" / "clients.md"


def test_the_page_of_clients_is_made_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == clients_page(), "run: python -m app.launch.clients_page"


def test_the_page_has_every_agent_and_every_client() -> None:
    titles = {line.removeprefix("### ") for line in clients_page().splitlines() if line.startswith("### ")}
    assert titles == {entry.title for entry in (*AGENTS, *CLIENTS)}
    assert len(titles) >= 30


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_the_lines_of_a_client_were_run_or_are_documented(client: Client) -> None:
    assert bool(client.tested) != bool(client.source)
    assert client.source.startswith("https://") or client.tested


def test_no_name_is_taken_twice() -> None:
    assert len(EDITORS) == len(set(EDITORS))
