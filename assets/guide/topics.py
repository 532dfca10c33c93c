"""The questions and answers of the corpus, read from corpus/*.md.

Owns the format of those files and how one line of theirs becomes many phrasings. Independent of tokens.

    ## name                a topic
    about: a | b           noun phrases, put into the frames "what is …", "explain …"
    task: a | b            verb phrases, put into the frames "how do I …", "I want to …"
    ? which [x|y] is it    a question; brackets hold alternatives and nest
    = fact, one/other      what a right answer contains; a slash separates alternatives
    > text                 the answer
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
ABOUT_FRAMES = (
    "[what is|what's|what are] {}",
    "[what is|what are] {}[ for| good for| exactly| in localllm|]",
    "what does {} [mean|do]",
    "explain {}[ to me| briefly| please|]",
    "[can you |could you |please |]explain {}",
    "[can you |]tell me [more |something |]about {}",
    "how does {} work",
    "how do {} work",
    "[how|when|why] [do i use|should i use|to use|would i use] {}",
    "[what about|and|describe|define|info on] {}",
    "i [do not|don't] understand {}",
    "what do you know about {}",
    "{}",
)
TASK_FRAMES = (
    "how [do i|can i|do you|to|should i|could i|does one|would i] {}",
    "how [do i|can i|to] {}[ with localllm| in localllm| here|]",
    "[what is|what's] the [command|way|best way] to {}",
    "[which|what] command [do i use|should i use|is there|lets me use] to {}",
    "[i want to|i need to|i'd like to|i would like to|help me|help me to|show me how to|tell me how to] {}",
    "[can i|can you|can localllm|is it possible to|is there a way to] {}",
    "what do i [do|type|enter|have to do] to {}",
    "{}",
)


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic of the guide: its phrasings, its answer, and the facts that a right answer contains."""

    name: str
    about: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    facts: tuple[tuple[str, ...], ...] = ()
    answer: str

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Every phrasing as a pattern, hand-written ones three times as often as framed ones."""
        framed = [frame.format(phrase) for phrase in self.about for frame in ABOUT_FRAMES]
        framed += [frame.format(phrase) for phrase in self.tasks for frame in TASK_FRAMES]
        n_times = max(1, len(framed) // max(1, 2 * len(self.questions)))
        return tuple(framed + list(self.questions) * n_times)

    def ask(self, rng: random.Random) -> str:
        return expand(rng.choice(self.patterns), rng)

    def is_right(self, answer: str) -> bool:
        """Return whether an answer names every fact of this topic."""
        text = answer.lower()
        return all(any(option.lower() in text for option in fact) for fact in self.facts)


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """Questions that the guide must decline: patterns with {slots}, what fills them, and the one answer."""

    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    answer: str

    def ask(self, rng: random.Random) -> str:
        pattern = re.sub(r"\{(\w+)\}", lambda slot: rng.choice(self.slots[slot[1]]), rng.choice(self.patterns))
        return expand(pattern, rng)


def expand(pattern: str, rng: random.Random) -> str:
    """Return the pattern with one alternative chosen in each pair of brackets, innermost first."""
    while True:
        pattern, n_done = re.subn(r"\[([^\[\]]*)\]", lambda group: rng.choice(group[1].split("|")), pattern)
        if not n_done:
            return " ".join(pattern.split())


def read_topics(folder: Path = CORPUS) -> dict[str, Topic]:
    """Return all topics by name, in the order of the files."""
    topics: dict[str, Topic] = {}
    for path in sorted(folder.glob("*.md")):
        for block in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            topic = _topic(*block.split("\n", 1))
            if topic.name in topics:
                raise ValueError(f"{path}: the topic {topic.name} is there twice")
            topics[topic.name] = topic
    return topics


def read_beyond(path: Path = CORPUS / "beyond.md") -> Beyond:
    """Return the questions that the guide declines."""
    text = path.read_text(encoding="utf-8")
    slots = re.findall(r"^(\w+): (.+)$", text, re.MULTILINE)
    return Beyond(
        patterns=tuple(_lines(text, "? ")),
        slots={name: tuple(values.split(", ")) for name, values in slots},
        answer=_answer(text),
    )


def _topic(name: str, body: str) -> Topic:
    facts = [fact.strip() for line in _lines(body, "= ") for fact in line.split(", ")]
    return Topic(
        name=name.strip(),
        about=tuple(_alternatives(body, "about: ")),
        tasks=tuple(_alternatives(body, "task: ")),
        questions=tuple(_lines(body, "? ")),
        facts=tuple(tuple(fact.split("/")) if fact[0] != "/" and fact[-1] != "/" else (fact,) for fact in facts),
        answer=_answer(body),
    )


def _lines(body: str, mark: str) -> list[str]:
    return [line.removeprefix(mark).strip() for line in body.splitlines() if line.startswith(mark)]


def _alternatives(body: str, mark: str) -> list[str]:
    return [phrase.strip() for line in _lines(body, mark) for phrase in line.split("|")]


def _answer(body: str) -> str:
    return "\n".join(line[1:].removeprefix(" ") for line in body.splitlines() if line.startswith(">"))
