"""The workloads that servers are compared by. Each takes a Bench and yields its figures one after the other.

Owns the requests and what is counted: decode, prefill, turns of chats, several clients, and edits. Prompts are random
English text, different at every call, so that no server has it in its cache; synthetic tokenizers have its words as
one token each. Random weights would never repeat a prompt, so in the edit workload a grammar of token ids forces the
answer: what a draft saves and what verifying it costs are then as real as with a trained model.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.bench.client import BenchClient, Message, TimedAnswer
from app.bench.measurement import Figure, Measurement, Unmeasured
from app.protocol.errors import ServiceError
from quantizer.system.errors import UserError

WORDS: tuple[str, ...] = tuple(
    """
    the and with from into about after before under over near between through across behind beside against along around
    said asked told wrote read found made took gave kept held left moved turned walked opened closed carried followed
    watched waited worked played called showed brought started stopped finished counted measured painted planted
    repaired sailed climbed crossed gathered answered borrowed promised noticed remembered explained discovered
    river mountain valley forest meadow island harbour bridge village market station garden orchard mill tower castle
    kitchen library school hospital theatre museum workshop factory office window door floor roof wall corner street
    road path field stone water fire wind rain snow storm cloud summer winter autumn spring morning evening night day
    hour minute week month year season moment story letter book paper picture map song dance dinner breakfast bread
    butter cheese apple pear cherry potato onion carrot sugar salt pepper coffee tea milk honey bottle basket bucket
    hammer ladder rope wheel engine wagon boat ship train horse dog cat bird fish wolf bear fox deer mouse sheep goat
    teacher doctor farmer sailor soldier painter singer writer driver hunter keeper merchant neighbour stranger
    brother sister mother father cousin uncle aunt child friend captain judge clerk nurse tailor cook guard king queen
    red green blue yellow white black brown grey golden silver dark bright warm cold dry wet heavy light narrow wide
    short long old young new quiet loud quick slow gentle clever honest careful careless famous friendly hungry lonely
    patient proud simple strange sudden tired useful wooden empty broken hidden ancient common distant foreign secret
    always never often seldom again almost already slowly quickly quietly suddenly together alone outside inside
    everywhere somewhere tomorrow yesterday today early late once twice perhaps because although while until unless
    first second third last next another several many few most every each either neither both other same different
    money price value weight length number answer question reason problem idea plan rule law story lesson example
    paragraph chapter sentence language history science music weather nature travel journey distance direction
    evidence memory purpose pattern signal circuit channel balance pressure surface shadow mirror candle lantern
    blanket pocket button needle thread cotton leather marble copper iron steel glass timber canvas carpet curtain
    """.split()  # noqa: SIM905 - a list of 400 quoted words would hide them
)


_SENTENCE_WORDS = (8, 14)
_N_SAMPLE_WORDS = 400


class RandomText:
    """An endless source of random sentences, each word of which begins with a space."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.tokens_per_word = 1.0

    def words(self, n_words: int) -> str:
        words: list[str] = []
        while len(words) < n_words:
            words += self.sentence()
        return "".join(words[: n_words - 1]) + words[n_words - 1].rstrip(".") + "."

    def tokens(self, n_tokens: int) -> str:
        """Return text of about `n_tokens` tokens, at least one word."""
        return self.words(max(1, round(n_tokens / self.tokens_per_word)))

    def beginning(self, text: str, n_tokens: int) -> str:
        """Return the first words of `text` that are about `n_tokens`, none for 0."""
        return "".join(f" {word}" for word in text.split()[: round(n_tokens / self.tokens_per_word)])

    def sentence(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the words of one sentence, including the `extra` ones, each with a space before it."""
        drawn = [*self._random.choices(WORDS, k=self._random.randint(*_SENTENCE_WORDS)), *extra]
        self._random.shuffle(drawn)
        return [f" {word}" for word in drawn[:-1]] + [f" {drawn[-1]}."]

    def choice(self) -> str:
        return self._random.choice(WORDS)

    def seed(self) -> int:
        return self._random.randrange(2**31)


async def measured_text(client: BenchClient, seed: int) -> RandomText:
    """Return prose that knows how many tokens its words have with the model that `client` talks to."""
    prose = RandomText(seed)
    answer = await client.complete(prose.words(_N_SAMPLE_WORDS), 2, temperature=0.0, ignore_eos=True)
    prose.tokens_per_word = answer.n_prompt / _N_SAMPLE_WORDS
    return prose


_SYSTEM_TOKENS = 600
_USER_WORDS = 40
_ANSWER_TOKENS = 48
_N_SENTENCES = 24
_N_TOKENS = 256
DEPTHS = (0, 512, 1800)
PREFILL_TOKENS = (512, 2000)
_DECODED_TOKENS = 64
_MARGIN_TOKENS = 48  # by which a prompt may be longer than it should be
_TURNS = 5
_READING_S = 1.0  # between an answer and the next message, as a user takes
_DRIFT = 20  # text cut to n tokens may be tokenized to n / 20 more: 2,000 became 2,061
_OTHER_CHATS = 3
_CLIENTS = (1, 4, 8)
_CLIENT_WORDS, _CLIENT_TOKENS = 60, 32


@dataclass(slots=True)
class SyntheticChat:
    """`messages` as sent; each turn appends the user's and the model's."""

    messages: list[Message]

    @classmethod
    def fresh(cls, prose: RandomText) -> SyntheticChat:
        """Return a chat with a new system prompt of 600 tokens."""
        return cls([{"role": "system", "content": prose.tokens(_SYSTEM_TOKENS)}])

    async def turn(self, client: BenchClient, prose: RandomText) -> TimedAnswer:
        """Send 40 words and wait for an answer of 48 tokens."""
        self.messages.append({"role": "user", "content": prose.words(_USER_WORDS).strip()})
        sampling = {"temperature": 0.8, "top_k": 40, "seed": prose.seed(), "ignore_eos": True}
        answer = await client.chat(self.messages, _ANSWER_TOKENS, **sampling)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer


@dataclass(frozen=True, slots=True)
class EditTask:
    """A prompt and the answer to force."""

    prompt: str
    answer: str


def rename(prose: RandomText) -> EditTask:
    """Replace a name that is in every sentence."""
    old, new = prose.choice(), prose.choice()
    words = _words(prose, (old,))
    renamed = (f" {new}{word[len(old) + 1 :]}" if word.strip(" .") == old else word for word in words)
    return _task(f"Write {new} for {old} in this text.", words, renamed)


def copy(prose: RandomText) -> EditTask:
    words = _words(prose)
    return _task("Repeat this text.", words, words)


def novel(prose: RandomText) -> EditTask:
    """Write other text of the same words."""
    return _task("Write something else than this text.", _words(prose), _words(prose))


def _words(prose: RandomText, extra: Sequence[str] = ()) -> list[str]:
    """Return the words of an edit task's text, the `extra` ones in each of its sentences."""
    return [word for _ in range(_N_SENTENCES) for word in prose.sentence(extra)]


def _task(instruction: str, words: Iterable[str], answer: Iterable[str]) -> EditTask:
    return EditTask(f"{instruction}\n\nText:\n{''.join(words)}\n\nResult:\n", "".join(answer))


NO_DRAFTS = "no drafts"
TASKS: dict[str, Callable[[RandomText], EditTask]] = {"rename": rename, "copy": copy, "novel": novel}


async def force_answer(client: BenchClient, task: EditTask, **options: Any) -> TimedAnswer:
    """Force the first 256 tokens of the task's answer. Raises ServiceError if the server writes others."""
    tokens = (await client.tokenize(task.answer))[:_N_TOKENS]
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
    answer = await client.complete(task.prompt, len(tokens), temperature=0.0, grammar=grammar, **options)
    if answer.n_output != len(tokens) or not task.answer.startswith(answer.text.rstrip("\N{REPLACEMENT CHARACTER}")):
        cause = f"The server left the grammar: {answer.n_output} tokens, {answer.text[:80]!r} …"
        raise ServiceError(cause, "Use one that supports grammars of token ids.")
    return answer


@dataclass(frozen=True, slots=True)
class Bench:
    """One server under measurement. `n_ctx` is the length of its context in tokens, 0 if unknown."""

    client: BenchClient
    prose: RandomText
    n_runs: int
    n_ctx: int = 0

    def sampling(self) -> dict[str, Any]:
        """Return usual sampling options; greedy output of random weights would fall into loops."""
        fixed = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "ignore_eos": True}
        return {**fixed, "seed": self.prose.seed()}

    def shortage(self, work: str, case: str, n_tokens: int) -> Unmeasured | None:
        """Return why a case of `n_tokens` does not fit the context, None if it does."""
        if self.n_ctx and n_tokens + n_tokens // _DRIFT + _MARGIN_TOKENS > self.n_ctx:
            return Unmeasured(work, case, f"The context has {self.n_ctx} tokens.")
        return None


Workload: TypeAlias = Callable[[Bench], AsyncGenerator[Figure, None]]


async def run_workloads(
    works: Mapping[str, Workload], names: Sequence[str], bench: Bench, report: Callable[[Figure], None]
) -> list[Figure]:
    """Run the named workloads, passing each figure to `report`. One that fails is unmeasured from there on."""
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
    return f"depth {depth}"


def prefill_case(n_tokens: int) -> str:
    return f"{n_tokens} tokens"


async def decode(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Measure tokens a second of one answer at several depths. Deeper prompts begin like shallower ones and like those
    of other runs, so that a server can reuse its cache; their last sentence is new."""
    document = bench.prose.tokens(max(DEPTHS))
    for depth in DEPTHS:
        case = decode_case(depth)
        if shortage := bench.shortage("decode", case, depth + _DECODED_TOKENS):
            yield shortage
            continue
        begin = bench.prose.beginning(document, depth)
        answers = [
            await bench.client.complete(begin + "".join(bench.prose.sentence()), _DECODED_TOKENS, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.decode_rate for answer in answers)
        note = f"{answers[-1].n_prompt} tokens before; {_drafts(answers)}"
        yield Measurement("decode", case, "tok/s", rates, note, _tokens_per_pass(answers))


async def prefill(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Measure prompt tokens a second until the first token, of prompts that no cache has."""
    for n_tokens in PREFILL_TOKENS:
        case = prefill_case(n_tokens)
        if shortage := bench.shortage("prefill", case, n_tokens):
            yield shortage
            continue
        answers = [
            await bench.client.complete(bench.prose.tokens(n_tokens), 2, **bench.sampling())
            for _ in range(bench.n_runs)
        ]
        rates = tuple(answer.n_prompt / answer.first_token_s for answer in answers)
        yield Measurement("prefill", case, "tok/s", rates, cached_note(answers))


async def turns(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Measure seconds to the first token: cold, next turn, after three other chats, and with a shared system prompt."""
    answers: dict[str, list[TimedAnswer]] = {"cold": [], "next turn": [], "back after 3 chats": [], "shared system": []}
    for _ in range(bench.n_runs):
        chat = SyntheticChat.fresh(bench.prose)
        answers["cold"].append(await chat.turn(bench.client, bench.prose))
        for _ in range(_TURNS - 1):
            await asyncio.sleep(_READING_S)
            answers["next turn"].append(await chat.turn(bench.client, bench.prose))
        for _ in range(_OTHER_CHATS):
            await SyntheticChat.fresh(bench.prose).turn(bench.client, bench.prose)
        answers["back after 3 chats"].append(await chat.turn(bench.client, bench.prose))
        answers["shared system"].append(await SyntheticChat(chat.messages[:1]).turn(bench.client, bench.prose))
    for case, of_case in answers.items():
        yield Measurement(
            "first token", case, "s", tuple(answer.first_token_s for answer in of_case), cached_note(of_case)
        )


async def clients(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Measure tokens a second of several clients together, each with its own prompt."""
    for n_clients in _CLIENTS:
        rates = []
        for _ in range(bench.n_runs):
            begun_s = bench.client.clock()
            running = []
            for _ in range(n_clients):
                prompt = [{"role": "user", "content": bench.prose.words(_CLIENT_WORDS)}]
                running.append(bench.client.chat(prompt, _CLIENT_TOKENS, **bench.sampling()))
            answers = await asyncio.gather(*running)
            rates.append(sum(answer.n_output for answer in answers) / (bench.client.clock() - begun_s))
        yield Measurement("clients", f"{n_clients} together", "tok/s", tuple(rates))


async def edit(bench: Bench) -> AsyncGenerator[Figure, None]:
    """Measure tokens a second of forced answers that repeat their prompt in part, in whole or not, and of the last
    without drafts, where the server leaves them out on demand."""
    without_drafts = (NO_DRAFTS, novel, {"speculative.n_max": 0})
    for name, make, options in (*((*task, {}) for task in TASKS.items()), without_drafts):
        answers = [await force_answer(bench.client, make(bench.prose), **options) for _ in range(bench.n_runs)]
        rates = tuple(answer.decode_rate for answer in answers)
        yield Measurement("edit", name, "tok/s", rates, _drafts(answers), _tokens_per_pass(answers))


def _drafts(answers: Sequence[TimedAnswer]) -> str:
    n_drafted = sum(answer.n_drafted for answer in answers)
    return f"{sum(answer.n_accepted for answer in answers)} of {n_drafted} drafted"


def _tokens_per_pass(answers: Sequence[TimedAnswer]) -> float:
    n_output = sum(answer.n_output for answer in answers)
    return n_output / (n_output - sum(answer.n_accepted for answer in answers))


def cached_note(answers: Sequence[TimedAnswer]) -> str:
    """Return how much of the prompts the server had cached."""
    n_prompt = sum(answer.n_prompt for answer in answers)
    return f"{sum(answer.n_cached for answer in answers) / n_prompt:.0%} of {n_prompt // len(answers)} cached"


WORKLOADS: dict[str, Workload] = {
    "decode": decode,
    "prefill": prefill,
    "turns": turns,
    "clients": clients,
    "edit": edit,
}
