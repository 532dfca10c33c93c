"""The user's guide: every page is a topic, its links lead somewhere, and its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from app.cli.main import _cli as command_line
from app.common.help_topics import TOPICS, read_topic
from quantizer.system.errors import UsageError

DOCS = Path(__file__).parents[3] / "assets" / "docs"


def _commands(page: str) -> list[list[str]]:
    """Return the words of each line of a shell block that runs localllm."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"\s+\|\s+|\s+&&\s+", line)]
    words = [shlex.split(part.removeprefix("uv run "), comments=True) for part in parts if "localllm" in part]
    return [line[1:] for line in words if line[:1] == ["localllm"]]


def test_every_page_is_a_topic_and_every_topic_has_a_page() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_begins_with_its_title_and_links_to_pages_that_exist(topic: str) -> None:
    page = read_topic(topic)
    assert page.startswith("# ")
    links = re.findall(r"\]\(([^)#]*)\)", page)
    assert [link for link in links if not link.startswith("http") and not (DOCS / link).exists()] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_the_commands_of_a_page_exist_with_their_options(topic: str) -> None:
    for words in _commands(read_topic(topic)):
        if not words or words[0].startswith("-"):
            continue  # the app itself
        context: click.Context = click.Context(command_line, info_name="localllm")
        command: click.Command = command_line
        while isinstance(command, click.Group) and words:
            found = command.get_command(context, words[0])
            assert found is not None, f"{words[0]} in {topic}.md"
            command, words = found, words[1:]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        ours = words[: words.index("--")] if "--" in words else words  # what follows belongs to another program
        used = {word.split("=")[0] for word in ours if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
        assert used <= options | {"--help"}, f"{sorted(used - options)} of {command.name} in {topic}.md"


def test_an_unknown_topic_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match="quantize"):
        read_topic("quantise")
