"""Answers of the kinds that SPEED-Bench distinguishes, of which drafts gain more or less.

The categories are those of its qualitative split, which llama.cpp's tools/server/bench/speed-bench asks for; its chats
lie on a hub and are not part of this repository. `read_samples` takes a file of them (lines of JSON with `category` and
`turns`), the chats here were written for this file: two of each category, some with a second turn.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench.client import Message, TimedAnswer
from app.bench.measurement import Figure, Measurement
from app.bench.workloads import NO_DRAFTS, Bench
from quantizer.system.errors import UserError

__all__ = ["CATEGORIES", "OWN_SAMPLES", "Sample", "categories", "read_samples", "without_drafts"]

_ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Sample:
    """A chat: what the user says in each turn."""

    category: str
    turns: tuple[str, ...]


_CLASS = """class Basket:
    def __init__(self):
        self.items = []

    def add(self, name, price, count=1):
        self.items.append((name, price, count))

    def total(self):
        return sum(price * count for _, price, count in self.items)"""

_REPORT = (
    "The harbour of Port Ansel handled 412 ships in spring, 38 more than a year before. Most of them carried "
    "timber and grain. The new crane, which was to be ready in March, came into use in the last week of May only,"
    " since two of its motors had been damaged on the way. Waiting times fell from 31 hours to 19 after that. The"
    " port's council will decide in August whether a second crane is bought; the treasurer expects a price of 4.1"
    " million."
)

OWN_SAMPLES: tuple[Sample, ...] = (
    Sample("coding", (f"Add a method that removes an item by its name:\n\n{_CLASS}", "Now write a test of it.")),
    Sample("coding", ("Write a Python function that returns the longest word of a text.",)),
    Sample("humanities", ("Why did towns in medieval Europe build their walls, and why did they take them down?",)),
    Sample("humanities", ("What is the difference between a myth and a legend?", "Give an example of each.")),
    Sample("math", ("A train leaves at 9:40 and arrives at 13:05. It stops for 25 minutes. How long does it move?",)),
    Sample("math", ("Solve 3x + 7 = 2x - 5 step by step.", "Now solve 3x - 7 = 2x + 5 in the same way.")),
    Sample("multilingual", ("Translate into German: The library opens at nine and closes at six on weekdays.",)),
    Sample("multilingual", ("Écris trois phrases sur la pluie en automne.",)),
    Sample("qa", ("How does a refrigerator keep food cold?",)),
    Sample("qa", ("Which planets of the solar system have rings?",)),
    Sample(
        "rag", (f"Answer from this text only.\n\n{_REPORT}\n\nWhy did the crane come late?", "How much is a second?")
    ),
    Sample("rag", (f"Answer from this text only, with a quotation.\n\n{_REPORT}\n\nHow long do ships wait now?",)),
    Sample("reasoning", ("Anna is older than Ben. Carl is younger than Ben. Who is the youngest, and why?",)),
    Sample("reasoning", ("All birds here can swim. Tilo cannot swim. What follows about Tilo?",)),
    Sample(
        "roleplay", ("You are the keeper of a lighthouse. Welcome a guest who came through the storm.", "It is cold.")
    ),
    Sample("roleplay", ("You are a merchant of carpets in an old market. I find your price too high.",)),
    Sample("stem", ("Explain how a vaccine prepares the body for a disease.",)),
    Sample("stem", ("What happens to the boiling point of water on a high mountain, and why?",)),
    Sample("summarization", (f"Summarize in two sentences:\n\n{_REPORT}",)),
    Sample("summarization", (f"List the facts of this text as points:\n\n{_REPORT}", "Shorten each point.")),
    Sample("writing", ("Write the beginning of a story about a clock that runs backwards.",)),
    Sample("writing", ("Write a letter that thanks a neighbour for watering the plants.", "Make it shorter.")),
)
CATEGORIES = tuple(dict.fromkeys(sample.category for sample in OWN_SAMPLES))


def read_samples(path: Path | None, n_each: int) -> tuple[Sample, ...]:
    """Return the first `n_each` chats of each category of the file at `path`, without one the chats of this module.
    Raises UserError."""
    if path is None:
        return OWN_SAMPLES
    found: dict[str, list[Sample]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            sample = Sample(str(row["category"]), tuple(str(turn) for turn in row["turns"] if str(turn).strip()))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: {error!r}", "Each line is an object with category and turns."
            ) from None
        found.setdefault(sample.category, []).append(sample)
    return tuple(sample for of_one in found.values() for sample in of_one[:n_each] if sample.turns)


def without_drafts(category: str) -> str:
    return f"{category}, {NO_DRAFTS}"


async def categories(
    bench: Bench, samples: Sequence[Sample] = OWN_SAMPLES, *, with_plain: bool = False
) -> AsyncGenerator[Figure, None]:
    """Measure tokens a second of greedy answers, after their first token, by category. Answers go on for 128 tokens, so
    that what a server writes does not decide how long it is measured. `with_plain` each answer is written without
    drafts too, after the other: drafts would be taken from an answer that was written before."""
    for category in dict.fromkeys(sample.category for sample in samples):
        answers: dict[bool, list[TimedAnswer]] = {True: []} | ({False: []} if with_plain else {})
        for _ in range(bench.n_runs):
            for sample in samples:
                if sample.category == category:
                    for has_drafts, written in answers.items():
                        written += await _chat(bench, sample, has_drafts=has_drafts)
        for has_drafts, written in answers.items():
            rate = sum(answer.n_output for answer in written) / sum(
                answer.n_output / answer.decode_rate for answer in written
            )
            n_drafted = sum(answer.n_drafted for answer in written)
            note = f"{sum(answer.n_accepted for answer in written)} of {n_drafted} drafted"
            case = category if has_drafts else without_drafts(category)
            yield Measurement("categories", case, "tok/s", (rate,), note)


async def _chat(bench: Bench, sample: Sample, *, has_drafts: bool) -> list[TimedAnswer]:
    messages: list[Message] = []
    answers = []
    options = {} if has_drafts else {"speculative.n_max": 0}
    for turn in sample.turns:
        messages.append({"role": "user", "content": turn})
        answer = await bench.client.chat(messages, _ANSWER_TOKENS, temperature=0.0, ignore_eos=True, **options)
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer)
    return answers
