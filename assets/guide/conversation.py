"""Conversations with the guide: questions, small talk, copying, and turns that look back.

Owns what a dialogue is made of and ChatML's marks. Independent of token ids.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from assets.guide.copying import Turn, copying_turn, editing_turn
from assets.guide.phrasing import disturb
from assets.guide.prose import invented_word, sentence, words
from assets.guide.topics import Beyond, Topic, read_beyond, read_topics
from assets.guide.vocabulary import SYSTEM_TEXT

SHARE_CUT, N_WORDS_CUT = 0.6, 6
KINDS, KIND_WEIGHTS = ("topic", "beyond", "copy", "edit", "back"), (45, 8, 12, 33, 2)
AGAIN = (
    "say that again",
    "repeat that",
    "repeat your last answer",
    "once more please",
    "again?",
    "can you repeat that?",
)
FIRST = ("what was my first question?", "what did I ask first?", "repeat my first question")
SYSTEMS = (
    "You are a helpful assistant.",
    "You are the localllm guide. Answer briefly.",
    "Answer in one sentence.",
    "You are a coding assistant.",
    "Be concise.",
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The source of chance for one conversation, the most words that one of its texts has, how many known answers
    break off early, and how often each kind of turn comes."""

    rng: random.Random
    n_words: int
    share_cut: float = SHARE_CUT
    kind_weights: tuple[int, ...] = KIND_WEIGHTS


def converse(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    """Yield pieces of ChatML without end, each with whether the guide is to learn it."""
    rng = dialogue.rng
    system = SYSTEM_TEXT if rng.random() < 0.85 else rng.choice((*SYSTEMS, sentence(rng)))
    yield f"<|im_start|>system\n{system}<|im_end|>\n", False
    turns: list[Turn] = []
    while True:
        turn = _turn(dialogue, turns)
        turns.append(turn)
        yield f"<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n", False
        if turn.is_known and rng.random() < dialogue.share_cut:
            # How an answer begins shows that the question was understood; the rest is known by heart soon.
            yield " ".join(turn.guide.split(" ")[:N_WORDS_CUT]), True
            yield "<|im_end|>\n", False
        else:
            yield f"{turn.guide}<|im_end|>", True
            yield "\n", False


@cache
def _topics() -> tuple[Topic, ...]:
    return tuple(read_topics().values())


@cache
def _beyond() -> Beyond:
    return read_beyond()


def _turn(dialogue: Dialogue, turns: list[Turn]) -> Turn:
    rng = dialogue.rng
    *weights, back_weight = dialogue.kind_weights
    kind = rng.choices(KINDS, (*weights, back_weight if turns else 0))[0]
    if kind == "topic":
        topic = rng.choice(_topics())
        return Turn(disturb(topic.ask(rng), rng), topic.answer, is_known=True)
    if kind == "beyond":
        return Turn(disturb(_beyond().ask(rng), rng), _beyond().answer, is_known=True)
    if kind == "back":
        return _looking_back(rng, turns)
    n_words = rng.randint(1, dialogue.n_words)
    return copying_turn(rng, n_words) if kind == "copy" else editing_turn(rng, max(4, n_words))


def _looking_back(rng: random.Random, turns: list[Turn]) -> Turn:
    if rng.random() < 0.5:
        return Turn(disturb(rng.choice(AGAIN), rng), turns[-1].guide)
    if rng.random() < 0.5:
        return Turn(disturb(rng.choice(FIRST), rng), turns[0].user)
    name = rng.choice((rng.choice(words()["name"]), invented_word(rng).capitalize()))
    opening = rng.choice(("my name is {}", "i am {}", "call me {}", "hello, I am {}")).format(name)
    return Turn(opening, f"Hello, {name}! What would you like to know about localllm?")
