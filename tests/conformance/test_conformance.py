"""Each promise of a peer holds, or is answered otherwise for a reason that users can read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.conformance.conftest import OTHERWISE, PEER, Server
from tests.conformance.row import Row, check

_HERE = Path(__file__).parent
_DOCS = _HERE.parents[1] / "assets" / "docs" / "api.md"
_TABLE: list[tuple[str, Row]] = [
    (path.stem, row)
    for path in sorted((_HERE / "peers").glob("*.py"))
    for row in import_module(f"tests.conformance.peers.{path.stem}").ROWS
]


@pytest.mark.parametrize(("peer", "row"), _TABLE, ids=[f"{peer}: {row.name}" for peer, row in _TABLE])
def test_the_answer_holds_what_the_peer_promises(
    peer: str, row: Row, server: Server, record_property: Callable[[str, object], None]
) -> None:
    record_property(PEER, peer)
    record_property(OTHERWISE, bool(row.otherwise) and server.is_ours)
    if row.scripted and not server.is_ours:
        pytest.skip("only the fake engine answers what a row tells it")
    check(row, server.http, server.model, is_ours=server.is_ours)


def test_each_row_has_a_name_of_its_own_and_a_source() -> None:
    assert [name for name, n_rows in Counter((peer, row.name) for peer, row in _TABLE).items() if n_rows > 1] == []
    assert [row.name for _, row in _TABLE if not row.source] == []


def test_each_difference_on_purpose_is_in_the_page_for_users() -> None:
    page = re.sub(r"\s+", " ", _DOCS.read_text(encoding="utf-8"))
    assert [row.otherwise for _, row in _TABLE if row.otherwise and row.otherwise not in page] == []
