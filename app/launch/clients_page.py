"""The page `assets/docs/clients.md`, made from the tables: `python -m app.launch.clients_page` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.launch.agents import AGENTS, Agent
from app.launch.clients import CLIENTS, Client, Group
from app.launch.editors import editor_settings

_URL, _MODEL = "http://127.0.0.1:11500", "qwen3-coder"
_LANGUAGES = {"codex": "toml", "crush": "json", "opencode": "json"}  # of the lines of agents; others are a shell's
_HEAD = f"""# Clients

Programs that work with localllm, and what sets each up. `localllm serve --editor NAME` prints the same lines with your
address, model and context; here they have `{_URL}` and `{_MODEL}`. Any key will do unless
the service was started with one (`--api-key`). Any other program for the APIs of OpenAI, Anthropic, Ollama, llama.cpp
or LM Studio is set up by the same address: [the API](api.md).

"Run with" names the version that was run against localllm with this. In a container, `127.0.0.1` is the container
itself: [serve](serve.md) says how a program there reaches this machine.
"""


def clients_page() -> str:
    """Return the page in Markdown: for each client its lines, and how they are known."""
    return "\n".join([_HEAD, *_sections()]).rstrip() + "\n"


def _sections() -> Iterator[str]:
    listed = {client.name for client in CLIENTS}
    for group in Group:
        yield f"## {group}\n"
        if group is Group.AGENT:
            yield "`localllm launch NAME` starts an agent with all this for one run: [agents](agents.md).\n"
            for agent in AGENTS:
                if agent.editor not in listed:
                    yield from _agent(agent)
        for client in CLIENTS:
            if client.group is group:
                yield from _client(client)


def _agent(agent: Agent) -> Iterator[str]:
    yield f"### {agent.title}\n"
    lines = [f"localllm launch {agent.name} -m {_MODEL}"]
    if agent.editor:
        yield from _fence("sh", f"{lines[0]}   # or for good: localllm serve --editor {agent.editor}")
        yield from _fence(_LANGUAGES.get(agent.editor, "sh"), editor_settings(agent.editor, _URL, _MODEL))
    else:
        yield from _fence("sh", lines[0])
    yield _known_by(agent)


def _client(client: Client) -> Iterator[str]:
    yield f"### {client.title}\n"
    yield f"`--editor {client.name}`\n"
    yield from _fence(client.language, editor_settings(client.name, _URL, _MODEL))
    yield _known_by(client)


def _known_by(entry: Agent | Client) -> str:
    if entry.tested:
        return f"Run with {entry.tested}.\n"
    return f"From [its {'code' if isinstance(entry, Agent) else 'documentation'}]({entry.source}), not run here.\n"


def _fence(language: str, text: str) -> Iterator[str]:
    yield f"```{language}\n{text}\n```\n"


if __name__ == "__main__":
    page = Path(__file__).parents[2] / "assets" / "docs" / "clients.md"
    page.write_text(clients_page(), encoding="utf-8")
