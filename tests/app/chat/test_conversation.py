from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import Message, MessageTree


def _message(message_id: int, parent_id: int | None) -> Message:
    return Message(id=message_id, parent_id=parent_id, role="user", content=str(message_id))


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    """Any tree or forest: each message follows an earlier one or none."""
    n_messages = draw(st.integers(1, 40))
    parents = [draw(st.none() | st.integers(1, number)) if number else None for number in range(n_messages)]
    return draw(st.permutations([_message(number + 1, parent) for number, parent in enumerate(parents)]))


@pytest.mark.slow
@given(messages(), st.data())
def test_a_path_leads_from_a_root_to_its_leaf_without_gaps(said: list[Message], data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from(said))
    path = MessageTree(said).path(leaf.id)
    assert path[0].parent_id is None
    assert path[-1] == leaf
    assert [message.parent_id for message in path[1:]] == [message.id for message in path[:-1]]


@pytest.mark.slow
@given(messages(), st.data())
def test_a_leaf_below_has_no_children_and_its_path_goes_through_the_message(
    said: list[Message], data: st.DataObject
) -> None:
    tree, chosen = MessageTree(said), data.draw(st.sampled_from(said))
    leaf_id = tree.leaf_below(chosen.id)
    assert chosen in tree.path(leaf_id)
    assert all(message.parent_id != leaf_id for message in said)


@pytest.mark.slow
@given(messages(), st.data())
def test_a_step_right_and_one_left_come_back_to_the_same_version(said: list[Message], data: st.DataObject) -> None:
    tree, chosen = MessageTree(said), data.draw(st.sampled_from(said))
    depth = len(tree.path(chosen.id)) - 1
    right = tree.beside(chosen.id, 1)
    if right is None:
        assert tree.siblings(chosen.id)[-1] == chosen.id
    else:
        version = tree.path(right)[depth]
        back = tree.beside(version.id, -1)
        assert back is not None
        assert tree.path(back)[depth] == chosen


@pytest.mark.slow
@given(messages())
def test_siblings_share_a_parent_and_every_message_is_its_own_sibling(said: list[Message]) -> None:
    tree = MessageTree(said)
    by_id = {message.id: message for message in said}
    for message in said:
        versions = tree.siblings(message.id)
        assert message.id in versions
        assert list(versions) == sorted(versions)
        assert {by_id[version].parent_id for version in versions} == {message.parent_id}


def test_an_edited_first_question_is_a_second_root() -> None:
    tree = MessageTree([_message(1, None), _message(2, 1), _message(3, None), _message(4, 3)])
    assert tree.siblings(1) == (1, 3)
    assert tree.beside(1, 1) == 4
    assert tree.beside(3, -1) == 2
    assert tree.beside(1, -1) is None


def test_no_leaf_is_an_empty_path() -> None:
    assert MessageTree([]).path(None) == ()


def test_an_unknown_leaf_is_no_path() -> None:
    with pytest.raises(KeyError):
        MessageTree([]).path(7)


@pytest.mark.slow
@given(messages())
def test_below_a_message_is_what_has_it_in_its_path(said: list[Message]) -> None:
    tree = MessageTree(said)
    for chosen in said:
        below = {message.id for message in said if chosen in tree.path(message.id)}
        assert set(tree.below(chosen.id)) == below
