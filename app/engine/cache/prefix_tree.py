"""The prefix tree: a radix tree over all cached sequences that finds the longest cached prefix of a prompt. Pure.

Each sequence is a path from the root; tokens shared by several sequences are one node, as they are one run of cells
in the cache, so the tree's size in tokens is the cache's in cells. Sequences of different namespaces share nothing.
Independent of models; its owner applies every change to the backend's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a prompt: `n_tokens` of `sequence_id` (None without a match)."""

    n_tokens: int
    sequence_id: int | None


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens after its parent's. `holders` are the sequences whose path contains it."""

    tokens: list[int]
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    holders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _SequencePath:
    """Path of a sequence: its namespace, last node, length in tokens, last use and locks."""

    namespace: Hashable
    end: _Node
    n_tokens: int
    used: int
    n_locks: int = 0


class PrefixTree:
    """Radix tree of the cached sequences; each ends where a node ends. `match`, `insert` and `extend` take O(tokens),
    the rest O(nodes on the path)."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._paths: dict[int, _SequencePath] = {}
        self._clock = 0
        self.n_cells = 0

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._paths

    def length(self, sequence_id: int) -> int:
        return self._paths[sequence_id].n_tokens

    def tokens(self, sequence_id: int) -> list[int]:
        return [token for node in reversed(list(_path(self._paths[sequence_id].end))) for token in node.tokens]

    def namespace(self, sequence_id: int) -> Hashable:
        return self._paths[sequence_id].namespace

    def match(
        self,
        tokens: Sequence[int],
        namespace: Hashable = (),
        n_usable: Callable[[int, int], int] = lambda _sequence_id, n_tokens: n_tokens,
    ) -> Match:
        """Return the longest prefix of `tokens` cached in `namespace`, of the sequence used last. Of a sequence count
        as many tokens as `n_usable` returns, given its id and how many match."""
        lengths: dict[int, int] = {}  # by sequence: how many of the first tokens it has
        node, n_matched = self._roots.get(namespace), 0
        while node and n_matched < len(tokens) and (child := node.children.get(tokens[n_matched])) is not None:
            n_equal = n_common(child.tokens, tokens, n_matched)
            node, n_matched = child, n_matched + n_equal
            lengths |= dict.fromkeys(node.holders, n_matched)
            if n_equal < len(child.tokens):
                break
        usable = ((n_usable(sequence_id, n), sequence_id) for sequence_id, n in lengths.items())
        found = ((n, self._paths[sequence_id].used, sequence_id) for n, sequence_id in usable)
        n_tokens, _, sequence_id = max(found, default=(0, 0, -1))
        return Match(n_tokens, sequence_id) if n_tokens else Match(0, None)

    def insert(self, sequence_id: int, tokens: Sequence[int], namespace: Hashable = ()) -> None:
        """Insert a new sequence of `namespace`; tokens of others there are shared."""
        assert sequence_id not in self._paths, "a sequence is inserted once"
        root = self._roots.setdefault(namespace, _Node([], None))
        self._paths[sequence_id] = _SequencePath(namespace, root, 0, self._tick())
        self.extend(sequence_id, tokens)

    def extend(self, sequence_id: int, tokens: Sequence[int]) -> Match:
        """Append `tokens` to the sequence; return how many of them another sequence had there already, and which. Those
        are shared nodes from now on, so their cells must be shared too."""
        path = self._paths[sequence_id]
        shared = Match(0, None)
        path.used = self._tick()
        begin = 0
        while begin < len(tokens):
            child = path.end.children.get(tokens[begin])
            if child is None:
                end, rest = path.end, tokens[begin:]
                if end.parent is not None and end.holders == {sequence_id} and not end.children:
                    end.tokens.extend(rest)  # no other sequence shares the last node
                else:
                    path.end = end.children[rest[0]] = _Node(list(rest), end, holders={sequence_id})
                self.n_cells += len(rest)
                break
            n_equal = n_common(child.tokens, tokens, begin)
            path.end = self._split(child, n_equal)
            begin += n_equal
            shared = Match(begin, next(iter(path.end.holders)))
            path.end.holders.add(sequence_id)
        path.n_tokens += len(tokens)
        return shared

    def truncate(self, sequence_id: int, n_tokens: int) -> None:
        """Remove all but the first `n_tokens` of the sequence."""
        path = self._paths[sequence_id]
        while path.n_tokens > n_tokens:
            node = path.end
            n_remaining = max(0, len(node.tokens) - (path.n_tokens - n_tokens))
            path.n_tokens -= len(node.tokens) - n_remaining
            if n_remaining:
                (node,) = self._split(node, n_remaining).children.values()
            assert node.parent is not None
            path.end = node.parent
            node.holders.remove(sequence_id)
            if not node.holders:
                del node.parent.children[node.tokens[0]]
                self.n_cells -= len(node.tokens)

    def remove(self, sequence_id: int) -> None:
        assert not self._paths[sequence_id].n_locks, "a locked sequence stays"
        self.truncate(sequence_id, 0)
        namespace = self._paths.pop(sequence_id).namespace
        if all(path.namespace != namespace for path in self._paths.values()):
            del self._roots[namespace]

    def lock(self, sequence_id: int) -> None:
        """Protect the sequence from eviction until `unlock`; locks are counted."""
        self._paths[sequence_id].n_locks += 1

    def unlock(self, sequence_id: int) -> None:
        path = self._paths[sequence_id]
        assert path.n_locks, "a lock is undone once"
        path.n_locks -= 1
        path.used = self._tick()

    def is_locked(self, sequence_id: int) -> bool:
        return self._paths[sequence_id].n_locks > 0

    def unlocked(self) -> list[int]:
        """Return the unlocked sequences, the least recently used first."""
        free = [(path.used, sequence_id) for sequence_id, path in self._paths.items() if not path.n_locks]
        return [sequence_id for _, sequence_id in sorted(free)]

    def exclusive_cells(self, sequence_id: int) -> int:
        """Return the number of cells that only this sequence uses: those that its removal frees."""
        return sum(len(node.tokens) for node in _path(self._paths[sequence_id].end) if len(node.holders) == 1)

    def locked_cells(self) -> int:
        locked = {sequence_id for sequence_id, path in self._paths.items() if path.n_locks}
        nodes = {id(node): node for sequence_id in locked for node in _path(self._paths[sequence_id].end)}
        return sum(len(node.tokens) for node in nodes.values())

    def check_integrity(self) -> None:
        """Assert every invariant of the tree; for tests."""
        n_cells = 0
        holders: dict[int, int] = dict.fromkeys(self._paths, 0)
        assert set(self._roots) == {path.namespace for path in self._paths.values()}, "a namespace has a sequence"
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            n_cells += len(node.tokens)
            for first, child in node.children.items():
                assert child.parent is node, "a child references its parent"
                assert child.tokens, "a node holds tokens"
                assert child.tokens[0] == first, "a child is found by its first token"
                assert child.holders, "a node has a holder"
                assert node.parent is None or child.holders <= node.holders, "a holder of a node holds its parent"
                pending.append(child)
            for sequence_id in node.holders:
                holders[sequence_id] += len(node.tokens)
        assert n_cells == self.n_cells, "the cells are counted"
        assert holders == {key: path.n_tokens for key, path in self._paths.items()}, "each length is the path's"
        for sequence_id, path in self._paths.items():
            assert all(sequence_id in node.holders for node in _path(path.end)), "a sequence holds its whole path"

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _split(self, node: _Node, n_tokens: int) -> _Node:
        """Return the node that ends after `n_tokens` of `node`, splitting a longer one."""
        if n_tokens == len(node.tokens):
            return node
        tail = _Node(node.tokens[n_tokens:], node, node.children, set(node.holders))
        for child in tail.children.values():
            child.parent = tail
        node.tokens = node.tokens[:n_tokens]
        node.children = {tail.tokens[0]: tail}
        for sequence_id in node.holders:
            if self._paths[sequence_id].end is node:
                self._paths[sequence_id].end = tail
        return node


def _path(node: _Node) -> Iterator[_Node]:
    """Yield the nodes from `node` up to, but without, the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def n_common(stretch: list[int], tokens: Sequence[int], begin: int = 0) -> int:
    """Return how many tokens of `stretch` equal those of `tokens` from `begin` on."""
    n_most = min(len(stretch), len(tokens) - begin)
    if stretch[:n_most] == list(tokens[begin : begin + n_most]):
        return n_most
    return next(index for index in range(n_most) if stretch[index] != tokens[begin + index])
