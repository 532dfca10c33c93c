from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_the_key_of_this_machine_stays_the_same(localllm: Callable[..., Any]) -> None:
    first = localllm("key")
    assert first.status == 0
    assert first.out.startswith("llm-")
    assert localllm("key").out == first.out
    (listed,) = localllm("key", "list", "--json").json["keys"]
    assert (listed["key"], listed["scopes"]) == (first.out.strip(), ["infer", "manage"])


def test_a_key_is_made_listed_without_itself_and_removed(localllm: Callable[..., Any]) -> None:
    made = localllm("key", "new", "laptop", "--json").json
    assert made["scopes"] == ["infer"]
    listed = localllm("key", "list").out
    assert "laptop  infer" in listed
    assert made["key"] not in listed
    assert localllm("key", "remove", "laptop", "--json").json == {"removed": "laptop"}
    assert localllm("key", "list", "--json").json == {"keys": []}


def test_scopes_are_chosen(localllm: Callable[..., Any]) -> None:
    assert localllm("key", "new", "a", "--scope", "manage", "--json").json["scopes"] == ["manage"]
    both = localllm("key", "new", "b", "--scope", "manage", "--scope", "infer", "--json").json
    assert both["scopes"] == ["infer", "manage"]


@pytest.mark.parametrize(
    "arguments", [("new", ""), ("new", "a\x1b[2J"), ("new", "a" * 65), ("new", "a", "--scope", "all"), ("remove", "a")]
)
def test_wrong_use_is_an_error(localllm: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    ended = localllm("key", *arguments)
    assert ended.status == 2
    assert "\x1b" not in ended.err
