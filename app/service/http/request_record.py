"""The figures of one request: its model, and its tokens. They contain no text of a prompt or an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.service.pool.engine_client import EngineClient

__all__ = ["RequestRecord", "record_of"]

_KEY = "localllm.record"


@dataclass(slots=True)
class RequestRecord:
    """Filled while a request is answered. The tokens of a prompt with several answers count once for each."""

    model_id: str = ""
    engine: EngineClient | None = None
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0

    def add(self, n_prompt_tokens: int, n_output_tokens: int = 0) -> None:
        """Add the tokens of an answer or a vector."""
        self.n_prompt_tokens += n_prompt_tokens
        self.n_output_tokens += n_output_tokens

    @property
    def warnings(self) -> tuple[str, ...]:
        """The planner's warnings about the model, once it is loaded."""
        return self.engine.status.warnings if self.engine is not None else ()


def record_of(scope: Any) -> RequestRecord:
    """Return the record of the request with this ASGI scope."""
    record = scope.setdefault(_KEY, RequestRecord())
    assert isinstance(record, RequestRecord)
    return record
