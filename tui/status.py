"""What the status line says: one value and its one line of text.

Pure: state and numbers in, text out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tui.connection import ConnectionState
from tui.meter import Meter

if TYPE_CHECKING:
    from app.client import Completed

__all__ = ["Status", "status_of"]

# By the connection's phase, or what an answer is at.
_LABELS = {
    "idle": "starting",
    "starting": "starting the service",
    "loading": "loading",
    "ready": "ready",
    "reading": "reading your question",
    "answering": "answering",
    "failed": "not available",
}
_BAR_CELLS = 10
_MODEL_CELLS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known. `activity` is a phase of the connection, "reading" or "answering"; None means not known yet."""

    model: str
    activity: str
    progress: float = 0.0
    tokens_per_s: float | None = None
    is_rate_estimated: bool = False
    time_to_first_token_s: float | None = None
    n_context_tokens: int = 0
    n_ctx: int = 0

    def text(self) -> str:
        """Return the line, its parts in order of importance, since a narrow terminal cuts it at the right."""
        return " · ".join(part for part in self._parts() if part)

    def _parts(self) -> tuple[str, ...]:
        return (
            _shortened(self.model),
            _LABELS[self.activity] + (_bar(self.progress) if self.activity == "loading" else ""),
            self._rate(),
            "" if self.time_to_first_token_s is None else f"first token {self.time_to_first_token_s:.2f} s",
            f"context {self.n_context_tokens}/{self.n_ctx}" if self.n_ctx else "",
        )

    def _rate(self) -> str:
        if self.tokens_per_s is None:
            return ""
        return f"{'≈' if self.is_rate_estimated else ''}{self.tokens_per_s:.1f} tok/s"


def status_of(connection: ConnectionState, running: Meter | None, last: Completed | None) -> Status:
    """Return the status: `running` measures the answer under way, `last` is what the one before cost."""
    rate, first_s = (last.decode_tokens_per_s, last.time_to_first_token_s) if last else (None, None)
    activity: str = connection.phase
    if running and connection.phase == "ready":
        rate, first_s = running.tokens_per_s, running.time_to_first_token_s
        activity = "reading" if first_s is None else "answering"
    return Status(
        model=connection.model,
        activity=activity,
        progress=connection.progress,
        tokens_per_s=rate,
        is_rate_estimated=running is not None,
        time_to_first_token_s=first_s,
        n_context_tokens=last.n_prompt_tokens + last.n_output_tokens if last else 0,
        n_ctx=connection.n_ctx,
    )


def _bar(progress: float) -> str:
    share = min(max(progress, 0.0), 1.0)
    n_full = round(share * _BAR_CELLS)
    return f" {'█' * n_full}{'░' * (_BAR_CELLS - n_full)} {share:.0%}"


def _shortened(model: str) -> str:
    return model if len(model) <= _MODEL_CELLS else f"…{model[1 - _MODEL_CELLS :]}"
