"""Which saved states go first when the disk is full: used long ago, or soon computed again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class StateKey:
    """Key of a state: its `tokens`, computed in a `namespace`. A checkpoint has no cells of the attention."""

    namespace: str
    tokens: Tokens
    is_checkpoint: bool = False


def n_common(left: Tokens, right: Tokens) -> int:
    n_most = min(len(left), len(right))
    differs = left[:n_most] != right[:n_most]
    return int(differs.argmax()) if differs.any() else n_most


def dropping_order(keys: Sequence[StateKey], sizes: Sequence[int]) -> Iterator[int]:
    """Yield the numbers of the states, each of so many bytes, in the order in which they should be dropped; the least
    recently used are the first of `keys`.

    Like GreedyDual-Size (Cao and Irani, USITS 1997), which adds what it costs to have an entry again, by its size, to
    when it was used. That cost is the tokens which no other state has: of two chats about a document one holds the
    document for both, and of the checkpoints of a chat the one behind its document spares most. Both are shares of the
    largest, since of a file only the order of use is known, and the use counts twice: what a chat that goes on has
    alone is little where all chats begin with the same tools. States that share nothing, with cells alone, go in the
    order of use: each of their tokens has as many bytes.
    """

    def in_order(number: int) -> tuple[str, bool, bytes]:
        return keys[number].namespace, keys[number].is_checkpoint, keys[number].tokens.tobytes()

    path = sorted(range(len(keys)), key=in_order)  # those that begin alike are neighbours
    shared = [0, *(_n_shared(keys[one], keys[other]) for one, other in pairwise(path)), 0]
    while path:
        n_spared = [_n_spared(place, path, shared, keys) for place in range(len(path))]
        values = [n / max(1, sizes[number]) for n, number in zip(n_spared, path, strict=True)]
        largest = max(values) or 1.0
        scores = [2 * number / len(keys) + value / largest for number, value in zip(path, values, strict=True)]
        place = scores.index(min(scores))
        yield path.pop(place)
        shared[place : place + 2] = [min(shared[place : place + 2])]


def _n_shared(one: StateKey, other: StateKey) -> int:
    is_alike = (one.namespace, one.is_checkpoint) == (other.namespace, other.is_checkpoint)
    return n_common(one.tokens, other.tokens) if is_alike else 0


def _n_spared(place: int, path: Sequence[int], shared: Sequence[int], keys: Sequence[StateKey]) -> int:
    """Return the tokens of a state that would be computed again without it. `shared` has what each state of the `path`
    shares with the one before it, and last a 0."""
    key = keys[path[place]]
    if not key.is_checkpoint:
        return len(key.tokens) - max(shared[place], shared[place + 1])
    n_alike = shared[place]  # a checkpoint is of use to what begins with all of its tokens
    for before in range(place - 1, -1, -1):
        n_before = len(keys[path[before]].tokens)
        if n_before <= n_alike:
            return len(key.tokens) - n_before
        n_alike = min(n_alike, shared[before])
        if not n_alike:
            break
    return len(key.tokens)
