from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.service.api.messages import alternate_roles

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
messages = st.lists(
    st.one_of(
        st.builds(dict, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=st.sampled_from("abc")),
        st.just({"role": "assistant", "content": None, "tool_calls": [CALL]}),
    ),
    max_size=8,
)


@given(messages)
def test_the_system_is_first_and_nothing_is_lost(given_messages: list[dict[str, Any]]) -> None:
    ordered = alternate_roles(given_messages)
    assert all(message["role"] != "system" for message in ordered[1:])
    text = "".join(message["content"] or "" for message in given_messages)
    assert "".join(message["content"] or "" for message in ordered).replace("\n\n", "") == text
    n_calls = sum(len(message.get("tool_calls", ())) for message in given_messages)
    assert sum(len(message.get("tool_calls", ())) for message in ordered) == n_calls


@given(messages)
def test_no_role_comes_twice_in_a_row_but_tools_and_calls(given_messages: list[dict[str, Any]]) -> None:
    ordered = alternate_roles(given_messages)
    for one, other in pairwise(ordered):
        assert one["role"] != other["role"] or one["role"] == "tool" or "tool_calls" in one
