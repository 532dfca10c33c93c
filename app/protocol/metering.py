"""A temporary API key, and what the requests that came with it used.

Owns these values. Independent of HTTP, and of who uses the key.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeteredKey:
    """A key that is valid while its stream is open: `id` names it in routes, `secret` is sent by clients."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredUsage:
    """Sums over the answers that came whole; `n_failed` requests got an error instead.

    `first_token_s` is the median time to first token, queue included; None before the first answer. The first prompt is
    that of the first request with tools, or of the first one at all where none has tools.
    """

    n_answers: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None
    n_first_prompt_tokens: int = 0
    n_first_cached_tokens: int = 0

    @property
    def cached_share(self) -> float:
        """The share of prompt tokens that were in the cache."""
        return self.n_cached_tokens / self.n_prompt_tokens if self.n_prompt_tokens else 0.0

    @property
    def later_cached_share(self) -> float:
        """The share of the prompt tokens besides the first prompt's that were in the cache."""
        n_later = self.n_prompt_tokens - self.n_first_prompt_tokens
        return (self.n_cached_tokens - self.n_first_cached_tokens) / n_later if n_later else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Computed prompt tokens a second; 0 where none were."""
        return (self.n_prompt_tokens - self.n_cached_tokens) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second of an answer after its first; 0 where there were none."""
        return (self.n_output_tokens - self.n_answers) / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class ContextLength:
    """The context of a loaded model and that of its training (0: unknown), in tokens; `reason` says why it is shorter
    than was asked for, empty where it is not."""

    n_ctx: int
    n_ctx_train: int
    reason: str = ""
