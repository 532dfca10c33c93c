"""Tasks whose answer is in the question: repeat, quote, rename, replace.

Owns the wordings of those tasks and the curriculum of their lengths. Independent of tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from assets.guide.prose import invented_word, paragraph, random_words, sentence, words
from assets.guide.pycode import identifiers, program, snippet
from assets.guide.topics import expand

REPEAT = (
    "[repeat|copy|echo|write|print|say|type|reproduce] [this|the following|the] text"
    "[ exactly| word for word| again| without changes|]:\n\n{}",
    "[please |can you |]repeat[ this| the following|][ exactly|]: {}",
    "[repeat|copy|say|echo|write] [exactly|after me|this]: {}",
    "{}\n\n[repeat|copy|write out|quote|reproduce] the text above[ exactly| without changes|].",
    "[quote|cite] [this|the following|this text]:\n\n{}",
    "say {}",
    'repeat "{}"',
)
REPEAT_CODE = (
    "[repeat|copy|print|give me|show|write out] this code[ exactly| unchanged| again|]:\n\n{}",
    "{}\n\n[repeat|copy|print|show] the code above[ exactly| unchanged|].",
    "[repeat|copy] [this|the] [file|function|program|snippet][ exactly|]:\n\n{}",
)
RENAME = (
    "rename {} to {}[ in this code|][ and give me the whole code| and give the whole| and show the result|]:\n\n{}",
    "[in this code, |please |]rename [the variable |the function |the name |]{} to {}[ everywhere|]:\n\n{}",
    "[replace|change] {} [with|by|to|into] {} in [this code|the code|this file]:\n\n{}",
)
REPLACE = (
    "[replace|change] [the word |]{} [with|by|to] {}[ in this text| in the following text| everywhere|]:\n\n{}",
    "[rewrite|repeat|copy] this text with {} replaced by {}:\n\n{}",
    "[change|turn] [every |]{} into {}[ in this text|]:\n\n{}",
)
QUOTE_FIRST = (
    "[quote|repeat|copy|what is] the first sentence[ of this text|]:\n\n{}",
    "{}\n\n[quote|repeat] the first sentence.",
)
QUOTE_LAST = (
    "[quote|repeat|copy|what is] the last sentence[ of this text|]:\n\n{}",
    "{}\n\n[quote|repeat] the last sentence.",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The user's text and the guide's answer."""

    user: str
    guide: str
    is_known: bool = False  # an answer from the corpus, the same each time


def passage(rng: random.Random, n_words: int) -> str:
    """Return a text of about n_words to copy: mostly prose, sometimes words in no order."""
    if n_words < 6 or rng.random() < 0.3:
        return random_words(rng, max(1, n_words))
    return paragraph(rng, max(1, round(n_words / 9)))


def copying_turn(rng: random.Random, n_words: int) -> Turn:
    """Return a request to repeat or to quote about n_words of text or code."""
    kind = rng.choices(("text", "code", "first", "last"), (10, 4, 1, 1))[0]
    if kind == "code":
        code = fenced(program(rng, max(1, n_words // 20)) if n_words > 12 else snippet(rng))
        return Turn(_ask(REPEAT_CODE, rng, code), code)
    if kind == "text":
        text = passage(rng, n_words)
        return Turn(_ask(REPEAT, rng, text), text)
    sentences = [sentence(rng) for _ in range(min(6, max(2, n_words // 9)))]
    wanted, asks = (sentences[0], QUOTE_FIRST) if kind == "first" else (sentences[-1], QUOTE_LAST)
    return Turn(_ask(asks, rng, " ".join(sentences)), wanted)


def editing_turn(rng: random.Random, n_words: int) -> Turn:
    """Return a request to rename a name in code, or to replace a word in a text, and the whole result."""
    return _renaming(rng, n_words) if rng.random() < 0.5 else _replacing(rng, n_words)


def fenced(code: str) -> str:
    return f"```python\n{code}```"


def _renaming(rng: random.Random, n_words: int) -> Turn:
    code = program(rng, max(1, n_words // 20))
    old, new = rng.choice(identifiers(code)), rng.choice((rng.choice(words()["noun"]), invented_word(rng)))
    new = new if rng.random() < 0.5 else f"{new}_{rng.choice(words()['noun'])}"
    quote = rng.choice(("", "`"))
    request = _ask(RENAME, rng, f"{quote}{old}{quote}", f"{quote}{new}{quote}", fenced(code))
    return Turn(request, fenced(_substitute(code, old, new)))


def _replacing(rng: random.Random, n_words: int) -> Turn:
    text = paragraph(rng, max(1, round(n_words / 9)))
    old = rng.choice(re.findall(r"\b\w{2,}\b", text))
    new = rng.choice(
        (rng.choice(words()["noun"]), rng.choice(words()["name"]), invented_word(rng), rng.choice(words()["adjective"]))
    )
    quote = rng.choice(("", '"', "'"))
    return Turn(_ask(REPLACE, rng, f"{quote}{old}{quote}", f"{quote}{new}{quote}", text), _substitute(text, old, new))


def _substitute(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", lambda _: new, text)


def _ask(patterns: tuple[str, ...], rng: random.Random, *parts: str) -> str:
    """Return one wording with the parts put in after its brackets are resolved, for the parts may hold brackets."""
    pattern = rng.choice(patterns).replace("\n", "\0")
    request = expand(pattern, rng).replace("\0", "\n").format(*parts)
    return request[0].upper() + request[1:] if rng.random() < 0.6 else request
