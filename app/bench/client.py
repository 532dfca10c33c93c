"""A streaming client of any OpenAI-compatible server that notes when each piece of an answer came.

Owns requests, server-sent events and the clock. Knows nothing of what is measured with them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

__all__ = ["Answer", "BenchError", "Client", "Message"]

Message = dict[str, str]

_TIMEOUT_S = 1200.0
_POLL_S = 0.25


class BenchError(Exception):
    """The server refused, failed, or does not do what a measurement needs."""


@dataclass(slots=True)
class Answer:
    """One answer while it comes. Times are seconds of `time.perf_counter`; counts are the server's own `usage`."""

    sent_s: float
    ended_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    text: str = ""
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def first_token_s(self) -> float:
        """Seconds from sending to the first text; to the end, where the answer has no text."""
        return (self.arrivals_s[0] if self.arrivals_s else self.ended_s) - self.sent_s

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one."""
        if self.n_output < 2 or len(self.arrivals_s) < 2:
            raise BenchError(f"The answer has {self.n_output} tokens in {len(self.arrivals_s)} pieces: too few.")
        return (self.n_output - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


class Client:
    """An async context manager. Answers are read with `stream`, or as a whole with `chat` and `complete`."""

    def __init__(self, url: str, model: str = "", api_key: str = "") -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, limits=limits)
        self._model = model

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def wait_ready(self, timeout_s: float) -> str:
        """Wait until the server answers and return the name of its model. Raises BenchError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                health = await self._http.get("/health")
                models = await self._http.get("/v1/models")
            except httpx.TransportError as error:
                state = str(error)
            else:
                if health.status_code in (200, 404) and models.status_code == 200:
                    self._model = self._model or str(models.json()["data"][0]["id"])
                    return self._model
                state = f"{health.status_code} {health.text[:300]}, {models.status_code}"
            if time.monotonic() > deadline_s:
                raise BenchError(f"The server is not ready after {timeout_s:g} s: {state}.")
            await asyncio.sleep(_POLL_S)

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`. Raises BenchError where the server has no /tokenize."""
        body = {"content": text, "add_special": False, "model": self._model}
        response = await self._http.post("/tokenize", json=body)
        if response.status_code != 200:
            raise BenchError(f"/tokenize: {response.status_code} {response.text[:300]}")
        return [int(token) for token in response.json()["tokens"]]

    async def chat(self, messages: Sequence[Message], n_tokens: int, **sampling: Any) -> Answer:
        """Return the whole next message, `n_tokens` long."""
        return await _whole(self.stream("/v1/chat/completions", {"messages": list(messages)}, n_tokens, **sampling))

    async def complete(self, prompt: str, n_tokens: int, **sampling: Any) -> Answer:
        """Return the whole continuation of `prompt`, `n_tokens` long."""
        return await _whole(self.stream("/v1/completions", {"prompt": prompt}, n_tokens, **sampling))

    async def stream(
        self, path: str, body: dict[str, Any], n_tokens: int, **sampling: Any
    ) -> AsyncGenerator[Answer, None]:
        """Yield the growing answer after each event. Closing it early hangs up. Raises BenchError."""
        fixed = {
            "model": self._model,
            "max_tokens": n_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = Answer(sent_s=time.perf_counter())
        async with self._http.stream("POST", path, json={**body, **fixed, **sampling}) as response:
            if response.status_code != 200:
                raise BenchError(f"{path}: {response.status_code} {(await response.aread())[:300]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip() != "[DONE]":
                    _add(answer, json.loads(line[5:]))
                    yield answer
        answer.ended_s = time.perf_counter()
        if not answer.n_output:
            raise BenchError(f"{path}: the server reported no usage.")
        yield answer


async def _whole(events: AsyncGenerator[Answer, None]) -> Answer:
    async with aclosing(events):
        async for answer in events:
            whole = answer
    return whole


def _add(answer: Answer, chunk: dict[str, Any]) -> None:
    """Add one event to `answer`."""
    if "error" in chunk:
        raise BenchError(f"The server failed: {chunk['error']}")
    text = "".join(_text(choice) for choice in chunk.get("choices") or ())
    if text:
        answer.arrivals_s.append(time.perf_counter())
        answer.text += text
    if usage := chunk.get("usage"):
        answer.n_prompt, answer.n_output = usage["prompt_tokens"], usage["completion_tokens"]
        answer.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if timings := chunk.get("timings"):
        answer.n_drafted, answer.n_accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return str(choice.get("text") or "") + str(delta.get("reasoning_content") or "") + str(delta.get("content") or "")
