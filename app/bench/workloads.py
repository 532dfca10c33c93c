"""The work that servers are compared by. Each workload takes a Bench and yields its figures one after the other.

Owns what is asked and what is counted. Knows nothing of any particular server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.bench.client import Answer, Client
from app.bench.conversation import Conversation
from app.bench.edit import TASKS, force
from app.bench.measurement import Figure, Measurement, Unmeasured
from app.bench.prose import Prose
from quantizer.errors import UserError

__all__ = [
    "DEPTHS",
    "PREFILL_TOKENS",
    "WORKLOADS",
    "Bench",
    "Workload",
    "cached_note",
    "decode_case",
    "do",
    "prefill_case",
]

DEPTHS = (0, 512, 1800)
PREFILL_TOKENS = (512, 2000)
_DECODED_TOKENS = 64
_MARGIN_TOKENS = 48  # by which a prompt may be longer than it should be
_TURNS = 5
_READING_S = 1.0  # between an answer and the next message: nobody answers in no time
_DRIFT = 20  # text cut to so many tokens may be read as one more of each so many: 2,000 became 2,061
_OTHER_CHATS = 3
_CLIENTS = (1, 4, 8)
_CLIENT_WORDS, _CLIENT_TOKENS = 60, 32


@dataclass(frozen=True, slots=True)
class Bench:
    """One server under measurement. `n_ctx` is how many tokens its context holds, 0 where it does not say."""

    client: Client
    prose: Prose
    n_runs: int
    n_ctx: int = 0

    def sampling(self) -> dict[str, Any]:
        """Sampling as people use it; greedy output of random weights would fall into loops."""
        fixed = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "ignore_eos": True}
        return {**fixed, "seed": self.prose.seed()}

    def refusal(self, work: str, case: str, n_tokens: int) -> Unmeasured | None:
        """Return why a case that takes `n_tokens` of context cannot be measured, None where it can."""
        if self.n_ctx and n_tokens + n_tokens // _DRIFT + _MARGIN_TOKENS > self.n_ctx:
            return Unmeasured(work, case, f"The context holds {self.n_ctx} tokens.")
        return None


Workload: TypeAlias = Callable[[Bench], AsyncGenerator[Figure, None]]


async def do(
    works: Mapping[str, Workload], names: Sequence[str], bench: Bench, report: Callable[[Figure], None]
) -> list[Figure]:
    """Do the named ones of `works`, telling `report` each figure. One that fails counts as unmeasured from there on."""
    found: list[Figure] = []

    def keep(figure: Figure) -> None:
        found.append(figure)
        report(figure)

    for name in names:
        try:
            async with aclosing(works[name](bench)) as figures:
                async for figure in figures:
                    keep(figure)
        except UserError as error:
            keep(Unmeasured(name, "", str(error)))
    return found


def decode_case(depth: int) -> str:
    """What decode at `depth` is called."""
    return f"depth {depth}"


def prefill_case(n_tokens: int) -> str:
    """What prefill of `n_tokens` is called."""
    return f"{n_tokens} tokens"


async def decode(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Tokens a second of one answer at several depths.

    Deeper prompts begin like shallower ones and like those of other runs, so that a server which keeps what it computed
    need not do it again; their last sentence is new.
    """
    document = bench.prose.tokens(max(DEPTHS))
    for depth in DEPTHS:
        case = decode_case(depth)
        if refusal := bench.refusal("decode", case, depth + _DECODED_TOKENS):
            yield refusal
            continue
        begin = bench.prose.beginning(document, depth)
        answers = [
            await bench.client.complete(begin + bench.prose.tail(), _DECODED_TOKENS, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.decode_rate for answer in answers)
        note = f"{answers[-1].n_prompt} tokens before; {_drafts(answers)}"
        yield Measurement("decode", case, "tok/s", rates, note, _tokens_per_pass(answers))


async def prefill(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Prompt tokens a second until the first token, of prompts that no cache knows."""
    for n_tokens in PREFILL_TOKENS:
        case = prefill_case(n_tokens)
        if refusal := bench.refusal("prefill", case, n_tokens):
            yield refusal
            continue
        answers = [
            await bench.client.complete(bench.prose.tokens(n_tokens), 2, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.n_prompt / answer.first_token_s for answer in answers)
        yield Measurement("prefill", case, "tok/s", rates, cached_note(answers))


async def turns(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Seconds to the first token: cold, next turn, back after three other chats, and with a shared system prompt."""
    answers: dict[str, list[Answer]] = {"cold": [], "next turn": [], "back after 3 chats": [], "shared system": []}
    for _ in range(bench.n_runs):
        chat = Conversation.fresh(bench.prose)
        answers["cold"].append(await chat.turn(bench.client, bench.prose))
        answers["next turn"] += [await _read_and_reply(chat, bench) for _ in range(_TURNS - 1)]
        for _ in range(_OTHER_CHATS):
            await Conversation.fresh(bench.prose).turn(bench.client, bench.prose)
        answers["back after 3 chats"].append(await chat.turn(bench.client, bench.prose))
        answers["shared system"].append(await chat.sibling().turn(bench.client, bench.prose))
    for case, given in answers.items():
        yield Measurement("first token", case, "s", tuple(answer.first_token_s for answer in given), cached_note(given))


async def _read_and_reply(chat: Conversation, bench: Bench) -> Answer:
    await asyncio.sleep(_READING_S)
    return await chat.turn(bench.client, bench.prose)


async def clients(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Tokens a second of several clients together, each with a prompt of its own."""
    for n_clients in _CLIENTS:
        rates = tuple([await _crowd_rate(bench, n_clients) for _ in range(bench.n_runs)])
        yield Measurement("clients", f"{n_clients} together", "tok/s", rates)


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


async def edit(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Tokens a second of forced answers that repeat their prompt in part, in whole or not."""
    for name, make in TASKS.items():
        answers = [await force(bench.client, make(bench.prose)) for _ in range(bench.n_runs)]
        rates = tuple(answer.decode_rate for answer in answers)
        yield Measurement("edit", name, "tok/s", rates, _drafts(answers), _tokens_per_pass(answers))


def _drafts(answers: Sequence[Answer]) -> str:
    n_drafted = sum(answer.n_drafted for answer in answers)
    return f"{sum(answer.n_accepted for answer in answers)} of {n_drafted} drafted"


def _tokens_per_pass(answers: Sequence[Answer]) -> float:
    n_output = sum(answer.n_output for answer in answers)
    return n_output / (n_output - sum(answer.n_accepted for answer in answers))


def cached_note(answers: Sequence[Answer]) -> str:
    """Return how much of their prompts a server had in its cache."""
    n_prompt = sum(answer.n_prompt for answer in answers)
    return f"{sum(answer.n_cached for answer in answers) / n_prompt:.0%} of {n_prompt // len(answers)} cached"


WORKLOADS: dict[str, Workload] = {
    "decode": decode,
    "prefill": prefill,
    "turns": turns,
    "clients": clients,
    "edit": edit,
}
