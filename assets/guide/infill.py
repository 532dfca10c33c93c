"""Fill-in-the-middle samples in the order that llama.cpp sends: repository, files, prefix, suffix, middle.

Owns where a file is cut. Knows the special tokens by name only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from assets.guide.prose import invented_word
from assets.guide.pycode import THINGS, file_name, program, snippet


@dataclass(frozen=True, slots=True)
class Infill:
    """A file cut in three, and sometimes other files of its repository as (name, text)."""

    prefix: str
    middle: str
    suffix: str
    repository: str = ""
    others: tuple[tuple[str, str], ...] = ()
    name: str = ""

    def prompt(self) -> str:
        """Return the prompt with its special tokens written out."""
        context = ""
        if self.repository:
            context = f"<|repo_name|>{self.repository}\n"
            context += "".join(f"<|file_sep|>{name}\n{text}" for name, text in self.others)
            context += f"<|file_sep|>{self.name}\n"
        return f"{context}<|fim_prefix|>{self.prefix}<|fim_suffix|>{self.suffix}<|fim_middle|>"


def infill(rng: random.Random) -> Infill:
    """Return a sample: a line, the rest of a line, some lines or any span is missing."""
    code = program(rng, rng.choice((1, 1, 2, 3)))
    start, end = _cut(code, rng)
    if rng.random() < 0.25:
        others = tuple((file_name(rng), snippet(rng)) for _ in range(rng.randint(0, 2)))
        repository = rng.choice((*THINGS, invented_word(rng)))
        return Infill(code[:start], code[start:end], code[end:], repository, others, file_name(rng))
    return Infill(code[:start], code[start:end], code[end:])


def _cut(code: str, rng: random.Random) -> tuple[int, int]:
    starts = [0, *(i + 1 for i, character in enumerate(code[:-1]) if character == "\n")]
    at = rng.randrange(len(starts))
    line_end = code.index("\n", starts[at])
    indent = starts[at] + len(code[starts[at] : line_end]) - len(code[starts[at] : line_end].lstrip())
    kind = rng.choices(("line", "rest", "lines", "span"), (4, 5, 2, 1))[0]
    if kind == "line":
        return indent, line_end
    if kind == "rest":
        return rng.randint(indent, line_end), line_end
    if kind == "lines":
        last = starts[min(len(starts) - 1, at + rng.randint(1, 3))]
        return indent, code.index("\n", last)
    start = rng.randrange(len(code))
    return start, min(len(code), start + rng.randint(1, 60))
