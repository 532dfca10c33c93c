"""The server that the rows are asked of: ours over the fake engine, or any by its URL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.app.conftest import (  # noqa: F401 - fixtures
    _children_of_tests_are_forked,
    _machine_is_measured_once,
    environment,
    shared_service,
    tiny_model,
)
from tests.patience import PATIENCE_S

PEER, OTHERWISE = "peer", "otherwise"  # what is told of each row


@dataclass(frozen=True, slots=True)
class Server:
    """Whom the rows ask, by which name of a model, and whether it is our service."""

    http: httpx.Client
    model: str
    is_ours: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options. They are known where this folder is named on the command line."""
    group = parser.getgroup("conformance")
    group.addoption("--conformance-url", help="ask this server instead of our own service")
    group.addoption("--conformance-model", default="default", help="the model that its requests name")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if url := request.config.getoption("--conformance-url", default=None):
        with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as http:
            yield Server(http, request.config.getoption("--conformance-model"), is_ours=False)
        return
    yield Server(request.getfixturevalue("shared_service").http, "tiny", is_ours=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table: rows, passed, and otherwise on purpose, by peer."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            told = dict(report.user_properties)
            if PEER in told:
                row = (1, outcome == "passed", outcome == "passed" and told[OTHERWISE])
                counts[told[PEER]] = [n + more for n, more in zip(counts[told[PEER]], row, strict=True)]
    for peer, (n_rows, n_passed, n_otherwise) in sorted(counts.items()):
        terminalreporter.line(f"{peer}: {n_rows} rows, {n_passed} passed, {n_otherwise} of them otherwise on purpose")
