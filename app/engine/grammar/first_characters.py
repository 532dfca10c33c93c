"""The tokens of a vocabulary by first character, so that a grammar need not check each of them. Pure.

A grammar that rejects a character rejects every token that begins with it. One token of that single character stands
for all of them, so some thousands of checks replace one per token. Independent of grammars.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

# Bytes of a character by the upper half of its first byte; 0 where none begins (source: RFC 3629, section 3).
_CHARACTER_BYTES = (1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4)

Tokens = NDArray[np.int32]


class FirstCharacters:
    """The tokens of a vocabulary, grouped by first character. `pieces` are their bytes, in the order of their ids.

    `all` are the ids. `probes` are the tokens to check: one of a single character for each group, then `alone`, those
    without such a token: parts of characters, characters that are no token themselves, and `ends`.
    """

    def __init__(self, pieces: Iterable[bytes], ends: Iterable[int]) -> None:
        alone = set(ends)
        members: dict[bytes, list[int]] = {}
        probe_of: dict[bytes, int] = {}
        whole: list[bool] = []
        for token, piece in enumerate(pieces):
            whole.append(_is_whole(piece))
            character = _first_character(piece)
            if token in alone or not character:
                alone.add(token)
                continue
            members.setdefault(character, []).append(token)
            if piece == character:
                probe_of[character] = token
        for character in members.keys() - probe_of.keys():
            alone.update(members.pop(character))
        self._is_whole = np.array(whole, bool)
        self._group = np.full(len(whole), len(members), np.int32)  # the last group has the tokens alone
        for index, character in enumerate(members):
            self._group[members[character]] = index
        self._n_groups = len(members)
        self.all: Tokens = np.arange(len(whole), dtype=np.int32)
        self.alone: Tokens = np.array(sorted(alone), np.int32)
        probes = np.array([probe_of[character] for character in members], np.int32)
        self.probes: Tokens = np.concatenate([probes, self.alone])

    def is_whole(self, token: int) -> bool:
        """Return whether the bytes of `token` are whole characters."""
        return bool(self._is_whole[token])

    def possible(self, is_allowed: NDArray[np.bool_], always: Tokens) -> Tokens:
        """Return `always` and the tokens whose probe is allowed, ascending; `is_allowed` has an entry a probe."""
        is_possible = np.append(is_allowed[: self._n_groups], False)[self._group]
        is_possible[self.alone] = is_allowed[self._n_groups :]
        is_possible[always] = True
        return np.flatnonzero(is_possible).astype(np.int32)


def _first_character(piece: bytes) -> bytes:
    """Return the bytes of the first character, none if the piece begins with an incomplete one."""
    n_bytes = _CHARACTER_BYTES[piece[0] >> 4] if piece else 0
    return piece[:n_bytes] if len(piece) >= n_bytes else b""


def _is_whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
