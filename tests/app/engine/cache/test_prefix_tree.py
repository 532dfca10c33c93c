from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.engine.cache.prefix_tree import Match, PrefixTree


def test_the_longest_usable_match_counts() -> None:
    tree = PrefixTree()
    tree.insert(1, [1, 2, 3, 4])
    tree.insert(2, [1, 2, 3])
    tree.insert(3, [1, 2])
    assert tree.match([1, 2, 3, 4, 5], n_usable=lambda sequence_id, n: n if sequence_id != 1 else 0) == Match(3, 2)
    assert tree.match([1, 2, 3, 9], n_usable=lambda _sequence_id, n: min(n, 2)) == Match(2, 3)
    assert tree.match([1, 2, 3], n_usable=lambda _sequence_id, _n: 0) == Match(0, None)


class NaiveCache:
    """What the tree must answer, by looking at every sequence. Odd and even ones belong to different realms."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}

    def n_matched(self, tokens: list[int], namespace: int) -> int:
        return max((common(held, tokens) for key, held in self.held.items() if key % 2 == namespace), default=0)

    @property
    def n_cells(self) -> int:
        return len({(key % 2, *held[: n + 1]) for key, held in self.held.items() for n in range(len(held))})


def common(left: list[int], right: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_an_empty_tree_matches_nothing() -> None:
    assert PrefixTree().match([1, 2]) == Match(0, None)


def test_a_prompt_matches_inside_a_longer_sequence() -> None:
    tree = PrefixTree()
    tree.insert(7, [1, 2, 3, 4])
    assert tree.match([1, 2, 9]) == Match(2, 7)


def test_a_shared_prefix_is_stored_once() -> None:
    tree = PrefixTree()
    tree.insert(1, [1, 2, 3])
    tree.insert(2, [1, 2, 4, 5])
    assert tree.n_cells == 5
    assert tree.exclusive_cells(1) == 1
    assert tree.exclusive_cells(2) == 2


def test_of_equal_matches_the_one_used_last_is_taken() -> None:
    tree = PrefixTree()
    tree.insert(1, [1, 2, 3])
    tree.insert(2, [1, 2, 4])
    tree.extend(1, ())
    assert tree.match([1, 2]) == Match(2, 1)


def test_removing_a_sequence_frees_its_exclusive_cells_only() -> None:
    tree = PrefixTree()
    tree.insert(1, [1, 2, 3])
    tree.insert(2, [1, 2, 4])
    tree.remove(1)
    assert tree.n_cells == 3
    assert tree.tokens(2) == [1, 2, 4]


def test_a_locked_sequence_is_never_the_coldest() -> None:
    tree = PrefixTree()
    tree.insert(1, [1])
    tree.insert(2, [2])
    tree.lock(1)
    assert tree.unlocked() == [2]
    tree.lock(2)
    assert tree.unlocked() == []
    tree.unlock(1)
    assert tree.unlocked() == [1]


def test_truncating_in_the_middle_of_a_shared_run_leaves_the_other_whole() -> None:
    tree = PrefixTree()
    tree.insert(1, [1, 2, 3, 4])
    tree.insert(2, [1, 2, 3, 4])
    tree.truncate(1, 2)
    assert tree.tokens(1) == [1, 2]
    assert tree.tokens(2) == [1, 2, 3, 4]
    tree.check_integrity()


class TreeAgainstNaive(RuleBasedStateMachine):
    """Random operations on the tree and on its naive twin."""

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.naive = PrefixTree(), NaiveCache()
        self.locks: dict[int, int] = {}

    tokens = st.lists(st.integers(0, 2), max_size=12)

    @rule(key=st.integers(0, 5), more=tokens)
    def insert_or_extend(self, key: int, more: list[int]) -> None:
        if key in self.naive.held:
            self.tree.extend(key, more)
        else:
            self.tree.insert(key, more, key % 2)
        self.naive.held[key] = self.naive.held.get(key, []) + more

    @precondition(lambda self: self.naive.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.naive.held)))
        n_tokens = data.draw(st.integers(0, len(self.naive.held[key])))
        self.tree.truncate(key, n_tokens)
        del self.naive.held[key][n_tokens:]

    @precondition(lambda self: self.naive.held)
    @rule()
    def evict_the_coldest(self) -> None:
        key = self.tree.unlocked()[0]
        n_freed = self.tree.exclusive_cells(key)
        before = self.tree.n_cells
        self.tree.remove(key)
        del self.naive.held[key]
        assert before - self.tree.n_cells == n_freed

    @rule(tokens=tokens, namespace=st.integers(0, 1))
    def match(self, tokens: list[int], namespace: int) -> None:
        found = self.tree.match(tokens, namespace)
        assert found.n_tokens == self.naive.n_matched(tokens, namespace)
        if found.sequence_id is not None:
            assert common(self.naive.held[found.sequence_id], tokens) == found.n_tokens

    @invariant()
    def tree_equals_naive(self) -> None:
        self.tree.check_integrity()
        assert self.tree.n_cells == self.naive.n_cells
        assert all(self.tree.tokens(key) == held for key, held in self.naive.held.items())


TestTreeAgainstNaive = TreeAgainstNaive.TestCase
TestTreeAgainstNaive.settings = settings(max_examples=50)


@pytest.mark.slow
def test_integrity_holds_after_each_of_10000_random_operations() -> None:
    chance, tree = random.Random(3), PrefixTree()
    documents = [[chance.randrange(50) for _ in range(200)] for _ in range(5)]
    done: Counter[str] = Counter()
    for _ in range(10_000):
        key = chance.randrange(12)
        document = chance.choice(documents)
        action = chance.choice(("extend", "extend", "go on", "truncate", "lock", "unlock", "evict"))
        if key not in tree:
            action = "insert"
            tree.insert(key, document[: chance.randrange(120)])
        elif action == "extend":
            tree.extend(key, [chance.randrange(50) for _ in range(chance.randrange(6))])
        elif action == "go on":  # as another sequence may have done before
            document = next((other for other in documents if other[:20] == tree.tokens(key)[:20]), document)
            tree.extend(key, document[tree.length(key) :][: chance.randrange(30)])
        elif action == "truncate":
            tree.truncate(key, chance.randrange(tree.length(key) + 1))
        elif action == "lock":
            tree.lock(key)
        elif action == "unlock":
            while tree.is_locked(key):
                tree.unlock(key)
        elif action == "evict" and (evictable := tree.unlocked()):
            tree.remove(evictable[0])
        tree.check_integrity()
        done[action] += 1
    assert min(done.values()) > 500, done


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=6))
def test_removing_everything_leaves_nothing(paths: list[list[int]]) -> None:
    tree = PrefixTree()
    for key, tokens in enumerate(paths):
        tree.insert(key, tokens)
    for key in range(len(paths)):
        tree.remove(key)
    tree.check_integrity()
    assert tree.n_cells == 0
