"""A streaming client for any OpenAI-compatible server that records when each piece of an answer arrives.

Owns requests, server-sent events and the clock. Does not evaluate the times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.client.connection import MAX_QUOTED, HttpConnection, error_message
from app.protocol.errors import ServiceError
from quantizer.figures import format_number

Message = dict[str, str]

_TIMEOUT_S = 1200.0
_POLL_S = 0.25


@dataclass(slots=True)
class TimedAnswer:
    """One answer while it streams. Times are seconds of the client's clock; counts are the server's `usage`.
    `prefill_rate` is the server's own, in tokens a second without waiting; None if it reports none."""

    sent_s: float
    ended_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    text: str = ""
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prefill_rate: float | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds from sending to the first text, or to the end of an answer without text."""
        return (self.arrivals_s[0] if self.arrivals_s else self.ended_s) - self.sent_s

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one. Raises ServiceError for an answer in one piece."""
        if self.n_output < 2 or len(self.arrivals_s) < 2:
            cause = f"The answer has {self.n_output} tokens in {len(self.arrivals_s)} pieces."
            raise ServiceError(cause, "Use a server that streams and supports ignore_eos.")
        return (self.n_output - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


class BenchClient(HttpConnection):
    """An open connection to a server. Answers are read with `stream`, or whole with `chat` and `complete`. `clock`
    times everything: on a busy machine the seconds of processor time that the server took say more. Every method raises
    ServiceError if the server cannot be reached, refuses, or does not speak OpenAI's API."""

    def __init__(
        self,
        url: str,
        model: str = "",
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        # llama-server closes idle connections after 5 s, as httpx does: a new request could use one being closed.
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
        super().__init__(url, api_key, transport, timeout=_TIMEOUT_S, limits=limits, trust_env=False)
        self._model = model
        self.clock = clock

    async def wait_ready(self, timeout_s: float) -> str:
        """Wait until the server answers and return the name of its model, by default the first one."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                health = await self._http.get("/health")
                models = await self._http.get("/v1/models")
            except httpx.TransportError as error:
                state = str(error)
            else:
                if health.status_code in (200, 404) and models.status_code == 200:
                    with self._parsing():
                        self._model = self._model or str(models.json()["data"][0]["id"])
                    return self._model
                state = f"{health.status_code} {health.text[:MAX_QUOTED]}, {models.status_code}"
            if time.monotonic() > deadline_s:
                cause = f"The server at {self.base_url} is not ready after {format_number(timeout_s)} s: {state}."
                raise ServiceError(cause, "Start it, and check the address.")
            await asyncio.sleep(_POLL_S)

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`; only llama.cpp's servers and ours have /tokenize."""
        body = {"content": text, "add_special": False, "model": self._model}
        tokens = await self.call("POST", "/tokenize", body)
        with self._parsing():
            return [int(token) for token in tokens["tokens"]]

    async def chat(self, messages: Sequence[Message], n_tokens: int, **sampling: Any) -> TimedAnswer:
        """Return the whole next message, `n_tokens` long."""
        return await _whole(self.stream("/v1/chat/completions", {"messages": list(messages)}, n_tokens, **sampling))

    async def complete(self, prompt: str, n_tokens: int, **sampling: Any) -> TimedAnswer:
        """Return the whole continuation of `prompt`, `n_tokens` long."""
        return await _whole(self.stream("/v1/completions", {"prompt": prompt}, n_tokens, **sampling))

    async def stream(
        self, path: str, body: dict[str, Any], n_tokens: int, **sampling: Any
    ) -> AsyncGenerator[TimedAnswer, None]:
        """Yield the growing answer after each event. Closing the generator early closes the connection."""
        fixed = {
            "model": self._model,
            "max_tokens": n_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = TimedAnswer(sent_s=self.clock())
        async with aclosing(self.events("POST", path, {**body, **fixed, **sampling})) as events:
            async for event in events:
                with self._parsing():
                    _add(answer, event, self.clock)
                yield answer
        answer.ended_s = self.clock()
        if not answer.n_prompt:
            raise ServiceError(f"{path}: the server reported no usage.", "Use a server that supports stream_options.")
        yield answer

    def _unreachable(self, error: Exception) -> ServiceError:
        return ServiceError(f"The server at {self.base_url} closed: {error}.", "Check its log, and start it again.")

    def _invalid(self, reason: str) -> ServiceError:
        cause = f"The server at {self.base_url} does not speak OpenAI's API: {reason}."
        return ServiceError(cause, "Give the address of an OpenAI-compatible server.")

    def _refusal(self, path: str, status: int, body: bytes) -> ServiceError:
        message = error_message(body)
        mark = "" if message.endswith((".", "!", "?")) else "."
        return ServiceError(f"{path} answers {status}: {message}{mark}", "The server may not support this.")


async def _whole(events: AsyncGenerator[TimedAnswer, None]) -> TimedAnswer:
    async with aclosing(events):
        async for answer in events:
            whole = answer
    return whole


def _add(answer: TimedAnswer, chunk: dict[str, Any], clock: Callable[[], float]) -> None:
    """Add one event to `answer`, at the time of `clock`."""
    if "error" in chunk:
        raise ServiceError(f"The server failed: {str(chunk['error'])[:MAX_QUOTED]}", "Check its log.")
    text = "".join(_text(choice) for choice in chunk.get("choices") or ())
    if text:
        answer.arrivals_s.append(clock())
        answer.text += text
    if usage := chunk.get("usage"):
        answer.n_prompt, answer.n_output = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        answer.n_cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    if timings := chunk.get("timings"):
        answer.prefill_rate = float(timings["prompt_per_second"]) if "prompt_per_second" in timings else None
        answer.n_drafted, answer.n_accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return str(choice.get("text") or "") + str(delta.get("reasoning_content") or "") + str(delta.get("content") or "")
