"""The work that servers are compared by. Each workload takes a Bench and returns its measurements.

Owns what is asked and what is counted. Knows nothing of any particular server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from client import Answer, BenchError, Client
from conversation import Conversation
from edit import TASKS, force
from measurement import Measurement, percentile
from prose import Prose

__all__ = ["DEFAULT_WORK", "WORKLOADS", "Bench"]

_DEPTHS = (0, 512, 1800)
_PREFILL_TOKENS = (512, 2000)
_DECODED_TOKENS = 64
_TURNS = 5
_OTHER_CHATS = 3
_CLIENTS = (1, 4, 8)
_CLIENT_WORDS, _CLIENT_TOKENS = 60, 32
_INTRUDER_TOKENS = 2000
_TOKENS_BEFORE, _TOKENS_AFTER = 16, 4  # of the running answer, around the arrival of the long prompt
_RUNNING_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class Bench:
    """One server under measurement. `conversation` is the file that keeps a chat across a restart."""

    client: Client
    prose: Prose
    n_runs: int
    conversation: Path | None = None

    def sampling(self) -> dict[str, Any]:
        """Sampling as people use it; greedy output of random weights would fall into loops."""
        fixed = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "ignore_eos": True}
        return {**fixed, "seed": self.prose.seed()}


Workload = Callable[[Bench], Awaitable[list[Measurement]]]


async def decode(bench: Bench) -> list[Measurement]:
    """Tokens a second of one answer after prompts of several lengths."""
    found = []
    for depth in _DEPTHS:
        answers = [
            await bench.client.complete(bench.prose.tokens(depth), _DECODED_TOKENS, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.decode_rate for answer in answers)
        note = f"{answers[-1].n_prompt} tokens before; {_drafts(answers)}"
        found.append(Measurement("decode", f"depth {depth}", "tok/s", rates, note))
    return found


async def prefill(bench: Bench) -> list[Measurement]:
    """Prompt tokens a second until the first token, of prompts that no cache knows."""
    found = []
    for n_tokens in _PREFILL_TOKENS:
        answers = [
            await bench.client.complete(bench.prose.tokens(n_tokens), 2, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.n_prompt / answer.first_token_s for answer in answers)
        found.append(Measurement("prefill", f"{n_tokens} tokens", "tok/s", rates, _cached(answers)))
    return found


async def turns(bench: Bench) -> list[Measurement]:
    """Seconds to the first token: cold, next turn, back after three other chats, and with a shared system prompt."""
    answers: dict[str, list[Answer]] = {"cold": [], "next turn": [], "back after 3 chats": [], "shared system": []}
    for _ in range(bench.n_runs):
        chat = Conversation.fresh(bench.prose)
        answers["cold"].append(await chat.turn(bench.client, bench.prose))
        answers["next turn"] += [await chat.turn(bench.client, bench.prose) for _ in range(_TURNS - 1)]
        for _ in range(_OTHER_CHATS):
            await Conversation.fresh(bench.prose).turn(bench.client, bench.prose)
        answers["back after 3 chats"].append(await chat.turn(bench.client, bench.prose))
        answers["shared system"].append(await chat.sibling().turn(bench.client, bench.prose))
    return [
        Measurement("first token", case, "s", tuple(answer.first_token_s for answer in given), _cached(given))
        for case, given in answers.items()
    ]


async def clients(bench: Bench) -> list[Measurement]:
    """Tokens a second of several clients together, each with a prompt of its own."""
    found = []
    for n_clients in _CLIENTS:
        rates = tuple([await _crowd_rate(bench, n_clients) for _ in range(bench.n_runs)])
        found.append(Measurement("clients", f"{n_clients} together", "tok/s", rates))
    return found


async def _crowd_rate(bench: Bench, n_clients: int) -> float:
    begun_s = time.perf_counter()
    answers = await asyncio.gather(
        *(
            bench.client.chat(
                [{"role": "user", "content": bench.prose.words(_CLIENT_WORDS)}], _CLIENT_TOKENS, **bench.sampling()
            )
            for _ in range(n_clients)
        )
    )
    return sum(answer.n_output for answer in answers) / (time.perf_counter() - begun_s)


async def intrusion(bench: Bench) -> list[Measurement]:
    """Milliseconds between the pieces of a running answer while a 2,000-token prompt arrives, and its prefill."""
    p50: list[float] = []
    p95: list[float] = []
    rates: list[float] = []
    for _ in range(bench.n_runs):
        gaps_s, intruder = await _intrude(bench)
        p50.append(1000 * percentile(gaps_s, 50))
        p95.append(1000 * percentile(gaps_s, 95))
        rates.append(intruder.n_prompt / intruder.first_token_s)
    return [
        Measurement("intrusion", "gap p50", "ms", tuple(p50)),
        Measurement("intrusion", "gap p95", "ms", tuple(p95)),
        Measurement("intrusion", f"prefill {_INTRUDER_TOKENS}", "tok/s", tuple(rates)),
    ]


async def _intrude(bench: Bench) -> tuple[list[float], Answer]:
    """Return the gaps that the prompt's prefill touched, in seconds, and the answer to that prompt."""
    prompt, long_prompt = bench.prose.tokens(64), bench.prose.tokens(_INTRUDER_TOKENS)
    long_answer: asyncio.Task[Answer] | None = None
    n_wanted = _TOKENS_BEFORE
    stream = bench.client.stream("/v1/completions", {"prompt": prompt}, _RUNNING_TOKENS, **bench.sampling())
    async with aclosing(stream):
        async for running in stream:
            if len(running.arrivals_s) < n_wanted:
                continue
            if long_answer is None:
                long_answer = asyncio.create_task(bench.client.complete(long_prompt, 2, **bench.sampling()))
            if long_answer.done():
                if n_wanted > _TOKENS_BEFORE:
                    break
                n_wanted = len(running.arrivals_s) + _TOKENS_AFTER
    if long_answer is None or not long_answer.done():
        raise BenchError(f"The answer ended before the prompt of {_INTRUDER_TOKENS} tokens was computed.")
    intruder = await long_answer
    begun_s, ended_s = intruder.sent_s, intruder.sent_s + intruder.first_token_s
    gaps = [after - before for before, after in pairwise(running.arrivals_s) if after > begun_s and before < ended_s]
    return gaps, intruder


async def edit(bench: Bench) -> list[Measurement]:
    """Tokens a second of forced answers that repeat their prompt in part, in whole or not."""
    found = []
    for name, make in TASKS.items():
        answers = [await force(bench.client, make(bench.prose)) for _ in range(bench.n_runs)]
        rates = tuple(answer.decode_rate for answer in answers)
        found.append(Measurement("edit", name, "tok/s", rates, _drafts(answers)))
    return found


async def leave(bench: Bench) -> list[Measurement]:
    """Hold a conversation and keep its text for `back`, which is for after a restart of everything."""
    chat = Conversation.fresh(bench.prose)
    answers = [await chat.turn(bench.client, bench.prose) for _ in range(_TURNS)]
    chat.save(_conversation_file(bench))
    return [Measurement("restart", "before, cold", "s", (answers[0].first_token_s,))]


async def back(bench: Bench) -> list[Measurement]:
    """Seconds to the first token of the next turn of the conversation that `leave` kept."""
    chat = Conversation.load(_conversation_file(bench))
    answer = await chat.turn(bench.client, bench.prose)
    return [Measurement("restart", "next turn", "s", (answer.first_token_s,), _cached([answer]))]


def _conversation_file(bench: Bench) -> Path:
    if bench.conversation is None:
        raise BenchError("Name the file of the conversation with --conversation.")
    return bench.conversation


def _drafts(answers: list[Answer]) -> str:
    n_drafted = sum(answer.n_drafted for answer in answers)
    return f"{sum(answer.n_accepted for answer in answers)} of {n_drafted} drafted"


def _cached(answers: list[Answer]) -> str:
    n_prompt = sum(answer.n_prompt for answer in answers)
    return f"{sum(answer.n_cached for answer in answers) / n_prompt:.0%} of {n_prompt // len(answers)} cached"


WORKLOADS: dict[str, Workload] = {
    "decode": decode,
    "prefill": prefill,
    "turns": turns,
    "clients": clients,
    "intrusion": intrusion,
    "edit": edit,
    "leave": leave,
    "back": back,
}
DEFAULT_WORK = ("decode", "prefill", "turns", "clients", "intrusion", "edit")
