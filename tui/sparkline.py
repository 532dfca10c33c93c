"""A row of figures as a row of blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], n_columns: int, most: float | None = None) -> str:
    """Return the last `n_columns` values, the newest on the right, from 0 to `most` (their own most by default).

    None is a gap: nothing was there to be measured.
    """
    shown = values[-n_columns:] if n_columns > 0 else ()
    top = most or max((value for value in shown if value is not None), default=0.0)
    return "".join(_block(value, top) for value in shown)


def _block(value: float | None, top: float) -> str:
    if value is None:
        return " "
    share = min(max(value / top, 0.0), 1.0) if top else 0.0
    return _BLOCKS[round(share * (len(_BLOCKS) - 1))]
