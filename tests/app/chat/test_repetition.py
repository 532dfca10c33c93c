from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.chat.events import Finished, Repeating, Written
from app.chat.exchange import ask
from app.chat.repetition import RepetitionDetector
from app.tools.approval import ToolSettings
from tests.app.chat.test_exchange import QUESTION, chat_of, drained
from tests.app.chat.tool_chats import unbatched
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply

__all__ = ["unbatched"]

SENTENCE = "The capital of France is Paris, which is known for its museums. "


def fires(text: str, n_characters: int = 4) -> int | None:
    """Return after how many characters of `text`, fed in pieces, the detector fires; None if it never does."""
    detector = RepetitionDetector()
    found = None
    for begin in range(0, len(text), n_characters):
        if detector.feed(text[begin : begin + n_characters]):
            assert found is None, "once"
            found = begin + n_characters
    return found


LOOPS = {
    "sentence": SENTENCE * 40,
    "after an answer": "Paris is a city. It has two million people.\n\n" + SENTENCE * 40,
    "paragraph": ("Once upon a time there was a fox who lived in a wood.\nHe was quick and brown.\n\n" * 30),
    "numbered list": "".join(f"{number}. Be honest with yourself and others.\n" for number in range(1, 80)),
    "bulleted list": "- Make sure that the data is correct.\n" * 60,
    "two items in turn": "".join(f"{i}. Check the cable.\n{i + 1}. Restart the router now.\n" for i in range(1, 90, 2)),
    "one word": "banana " * 500,
    "signs": "!" * 6000,
    "no spaces": "好的我们可以继续讨论这个问题吧" * 80,
    "code": "```python\n" + "    print('hello, world, how are you')\n" * 100,
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("n_characters", [1, 4, 50, 1000])
def test_a_loop_is_noticed_while_it_goes_on(name: str, n_characters: int) -> None:
    assert fires(LOOPS[name], n_characters) is not None


def test_a_loop_of_sentences_is_noticed_after_about_two_hundred_tokens() -> None:
    found = fires("Some words before it. " + SENTENCE * 40)
    assert found is not None
    assert 800 <= found <= 1000


LAWFUL = {
    "ruler": "Result\n" + "=" * 400 + "\n",
    "ruler of pairs": "-+" * 300,
    "box of a drawing": ("|" + " " * 60 + "|\n") * 40,
    "table of one kind": "| Yes | No | Yes | unknown value |\n" * 30,
    "table": "".join(f"| {n} | {n * n} | {'even' if n % 2 == 0 else 'odd'} |\n" for n in range(100)),
    "zeros": "0, " * 600,
    "matrix": "[0.0, 0.0, 0.0, 1.0],\n" * 64,
    "song": "La la la la la la la\n" * 20 + "Hey Jude, do not make it bad.\n",
    "refrain": ("We all live in a yellow submarine, yellow submarine, yellow submarine.\n" * 4 + "So we sailed.\n") * 3,
    "boilerplate": "```html\n" + '  <li class="nav-item"><a href="#">Menu entry</a></li>\n' * 30 + "```\n",
    "list": "".join(f"{n}. The number {n} has the square {n * n}.\n" for n in range(300)),
    "json": json.dumps([{"id": n, "name": f"user {n}", "active": True} for n in range(100)], indent=2),
    "blank lines": "\n" * 500,
    "hexdump": "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00\n" * 40,
    "braces": "}" * 100,
    "laughter": "ha" * 400,
}


@pytest.mark.parametrize("name", LAWFUL)
@pytest.mark.parametrize("n_characters", [1, 7, 5000])
def test_what_repeats_lawfully_is_no_loop(name: str, n_characters: int) -> None:
    assert fires(f"Here it is:\n{LAWFUL[name]}That is all.", n_characters) is None


def test_prose_of_few_words_is_no_loop() -> None:
    words = ["the", "model", "a", "token", "reads", "writes", "and", "of", "file", "is", "to", "in"]
    chosen = random.Random(7)
    assert fires(" ".join(chosen.choice(words) for _ in range(8000))) is None


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=60, unique=True), st.integers(1, 300))
def test_an_answer_whose_lines_all_differ_is_no_loop(lines: list[str], n_characters: int) -> None:
    text = "\n".join(f"{number} {line}" for number, line in enumerate(lines))
    assert fires(text, n_characters) is None


@given(st.text(st.characters(codec="utf-8", categories=("L", "Zs")), min_size=16, max_size=300), st.integers(1, 400))
def test_any_sentence_again_and_again_is_a_loop(unit: str, n_characters: int) -> None:
    assume(sum(map(str.isalpha, unit)) >= 12)
    n_repeats = max(12, 6000 // len(unit))
    assert fires(unit * n_repeats, n_characters) is not None


@pytest.mark.parametrize("part", ["deltas", "thoughts"])
async def test_a_chat_says_once_that_its_answer_repeats_itself_and_does_not_stop_it(part: str) -> None:
    pieces = (SENTENCE,) * 60
    answer = ScriptedReply(**{part: pieces}, ending=replace(COMPLETED, n_output_tokens=900))
    chat = chat_of(ScriptedClient(answer), ToolSettings())
    seen = await drained(ask(chat, QUESTION, None))
    kinds = [type(event) for event in seen]
    assert kinds.count(Repeating) == 1
    index = kinds.index(Repeating)
    assert kinds[index - 1] is Written
    assert kinds[-1] is Finished, "it goes on"
    (told,) = [event for event in seen if isinstance(event, Repeating)]
    last = chat.conversation.branch[-1]
    assert told.message.id == last.id
    whole = last.content if part == "deltas" else last.reasoning
    assert whole.strip() == "".join(pieces).strip()


def test_a_loop_that_was_noticed_is_not_looked_at_again() -> None:
    detector = RepetitionDetector()
    found = [detector.feed(SENTENCE) for _ in itertools.repeat(None, 200)]
    assert found.count(True) == 1
