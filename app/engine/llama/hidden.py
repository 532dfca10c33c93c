"""The last hidden states of each sequence, by position. Pure: no native memory.

Owns nothing but the newest rows: one more token may follow any of them, and what was kept before is forgotten.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["HiddenRows", "Row"]

Row = NDArray[np.float32]


class HiddenRows:
    """Rows of float32, one per token, of the last tokens of each sequence."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Row]] = {}  # position of the first row, and the rows

    def keep(self, sequence_id: int, position: int, rows: Row) -> None:
        """Keep a copy of `rows`, shape (n, n_embd), of the tokens from `position` on, and nothing else."""
        self._rows[sequence_id] = position, rows.copy()

    def before(self, sequence_id: int, position: int) -> Row | None:
        """Return the row of the token before `position`, None where it is not known."""
        begin, rows = self._rows.get(sequence_id, (position, ()))
        index = position - 1 - begin
        return rows[index] if 0 <= index < len(rows) else None

    def share(self, source_id: int, target_id: int) -> None:
        """Let a sequence that begins anew as another begins know what is known of that."""
        self.forget(target_id)
        if source_id in self._rows:
            self._rows[target_id] = self._rows[source_id]

    def forget(self, sequence_id: int) -> None:
        self._rows.pop(sequence_id, None)

    def clear(self) -> None:
        self._rows.clear()
