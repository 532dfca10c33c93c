"""What drafts gain, as it is printed: a row for each acceptance, a column for each length; or one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.cli.plan_report import aligned
from app.engine.draft_gain import DraftGain

__all__ = ["gains_json", "gains_lines"]


def gains_json(rows: Sequence[DraftGain], *, is_measured: bool) -> dict[str, Any]:
    """Return the table as one object."""
    return {
        "is_measured": is_measured,
        "speculation": [
            {
                "acceptance": row.acceptance,
                "gains": [{"draft_tokens": length, "gain": round(gain, 3)} for length, gain in row.gains.items()],
                "best": {"draft_tokens": row.best_length, "gain": round(row.best_gain, 3)},
            }
            for row in rows
        ],
    }


def gains_lines(rows: Sequence[DraftGain], *, is_measured: bool) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "Times as fast as without drafts, by tokens of a draft; rows say how often each token is taken."
    yield ""
    heading = ["taken", *map(str, rows[0].gains), "best"]
    yield from aligned(
        [heading, *([f"{row.acceptance:.0%}", *map(_figure, row.gains.values()), _best(row)] for row in rows)]
    )
    yield ""
    if is_measured:
        yield "Steps cost what was measured here with this model."
    else:
        yield "Steps cost what they usually do on a processor; `localllm tune MODEL` measures what they do here."


def _figure(gain: float) -> str:
    return f"{gain:.2f}"


def _best(row: DraftGain) -> str:
    return f"{row.best_gain:.2f} with {row.best_length}" if row.best_length else "none pays"
