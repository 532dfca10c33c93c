"""The versions that are named to users are those that are run here."""

from __future__ import annotations

import pytest

from app.launch.agents import AGENTS, Agent
from app.launch.clients import CLIENTS as SHOWN
from app.launch.clients import Client as Shown
from tests.clients.run import CLIENTS

TESTED = [client for client in SHOWN if client.tested]
# Agents whose settings a script takes from the page, by the name that they have there.
_SCRIPTED = {"vibe": "vibe", "openhands": "openhands", "llm": "llm"}


def _version(package: str) -> str:
    return package.replace("==", "@").rpartition("@")[2]


@pytest.mark.parametrize("shown", TESTED, ids=[client.name for client in TESTED])
def test_the_lines_of_the_page_are_run_with_the_version_that_it_names(shown: Shown) -> None:
    name = _SCRIPTED.get(shown.name)
    (run,) = (client for client in CLIENTS if (client.name == name if name else client.lines == shown.name))
    assert _version(run.package) == shown.tested


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.tested], ids=lambda agent: agent.name)
def test_an_agent_is_run_with_the_version_that_launch_names(agent: Agent) -> None:
    (run,) = (client for client in CLIENTS if client.agent == agent.name)
    assert _version(run.package) == agent.tested
