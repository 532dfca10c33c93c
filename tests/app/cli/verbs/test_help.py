"""`localllm help`: topics, pages, and commands that are taken for topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.common.help_topics import TOPICS, read_topic

Run = Callable[..., Any]


def test_without_a_topic_it_lists_all_of_them(localllm: Run) -> None:
    ran = localllm("help")
    assert ran.status == 0
    assert all(f"  {name} " in ran.out and title in ran.out for name, title in TOPICS.items())


def test_in_a_pipe_a_page_is_printed_as_markdown(localllm: Run) -> None:
    ran = localllm("help", "quantize")
    assert ran.status == 0
    assert ran.out.strip() == read_topic("quantize").strip()


def test_a_command_without_a_page_shows_its_options(localllm: Run) -> None:
    ran = localllm("help", "ps")
    assert ran.status == 0
    assert ran.out.startswith("Usage: localllm ps")


def test_an_unknown_topic_names_the_nearest(localllm: Run) -> None:
    ran = localllm("help", "quantise")
    assert ran.status == 2
    assert "quantize" in ran.err
