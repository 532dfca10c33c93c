"""Reads a GBNF grammar and makes random texts of it; for tests of what a grammar allows, without llama.cpp."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import overload

TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\[(\^?)((?:[^\]\\]|\\.)*)\]|\{(\d+)(,?)(\d*)\}|([a-z0-9-]+)|([()|*+?]))')
ESCAPE = re.compile(r"\\(?:x([0-9A-F]{2})|U([0-9A-F]{8})|(.))|(.)", re.DOTALL)
LETTERS = 'abcdeg09 .,:{}[]éλ中😀/-"\\\n'
MOST_REPEATS = 3  # of what may be repeated without end


def characters(text: str) -> list[str]:
    plain = {"n": "\n", "t": "\t", "r": "\r"}
    found = []
    for two, eight, escaped, other in ESCAPE.findall(text):
        found.append(chr(int(two or eight, 16)) if two or eight else plain.get(escaped, escaped) or other)
    return found


class Characters(Sequence[str]):
    """All characters of some ranges of codes, in order and each once; a range may go over all of Unicode."""

    def __init__(self, ranges: Iterable[range]) -> None:
        self._ranges: list[range] = []
        for each in sorted(ranges, key=lambda each: each.start):
            if self._ranges and each.start <= self._ranges[-1].stop:
                self._ranges[-1] = range(self._ranges[-1].start, max(self._ranges[-1].stop, each.stop))
            else:
                self._ranges.append(each)
        self._begins = [0, *accumulate(map(len, self._ranges))]

    def __len__(self) -> int:
        return self._begins[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        assert isinstance(index, int)
        at = bisect_right(self._begins, index) - 1
        return chr(self._ranges[at][index - self._begins[at]])

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and any(ord(character) in each for each in self._ranges)


@cache
def members(is_negated: bool, text: str) -> Characters:
    items = characters(text)
    found = list(re.finditer(r"(\\x..|\\U.{8}|[^\\])-(\\x..|\\U.{8}|[^\\])", text)) if "-" in text[1:-1] else []
    ranges = [range(ord(characters(match[1])[0]), ord(characters(match[2])[0]) + 1) for match in found]
    ranges += [range(ord(item), ord(item) + 1) for item in items if item != "-" or not found]
    chosen = Characters(ranges)
    if not is_negated:
        return chosen
    return Characters(range(ord(letter), ord(letter) + 1) for letter in LETTERS if letter not in chosen)


class Grammar:
    """A part is ("text", str), ("class", members), ("rule", name), ("any", [alternatives]) or ("repeat", ...)."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, tuple] = {}
        for line in text.splitlines():
            name, body = line.split(" ::= ", 1) if " ::= " in line else (line.removesuffix(" ::="), "")
            assert not body.rstrip().endswith("|"), "llama.cpp would read on in the next line"
            self._tokens = TOKEN.findall(body)
            assert "".join(match[0] for match in TOKEN.finditer(body)).strip() == body.strip(), body
            self.rules[name] = self._alternatives()
            assert not self._tokens
        self._heights: dict[str, int] = dict.fromkeys(self.rules, 10**6)
        for _ in self.rules:
            before = dict(self._heights)
            for name, part in reversed(self.rules.items()):  # most rules name those behind them
                self._heights[name] = 1 + self._height(part)
            if before == self._heights:
                break

    def _alternatives(self) -> tuple:
        ways: list[list[tuple]] = [[]]
        while self._tokens and self._tokens[0][-1] != ")":
            text, negated, members_text, least, comma, most, name, sign = self._tokens.pop(0)
            if sign == "|":
                ways.append([])
            elif sign == "(":
                ways[-1].append(self._alternatives())
                assert self._tokens.pop(0)[-1] == ")"
            elif sign or least:
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or (
                    int(least), (int(most) if most else None) if comma else int(least)
                )  # fmt: skip
                ways[-1].append(("repeat", ways[-1].pop(), low, high))
            elif name:
                ways[-1].append(("rule", name))
            elif members_text:
                ways[-1].append(("class", members(bool(negated), members_text)))
            else:
                ways[-1].append(("text", "".join(characters(text))))
        return ("any", ways)

    def _height(self, part: tuple) -> int:
        match part:
            case ("any", ways):
                return min(max((self._height(item) for item in way), default=0) for way in ways)
            case ("rule", name):
                return self._heights[name]
            case ("repeat", item, low, _):
                return self._height(item) if low else 0
        return 0

    def sample(self, chance: random.Random, budget: int = 30, part: tuple = ("rule", "root")) -> str:
        """Return a random text; past `budget` rules deep the shortest way out is taken."""
        match part:
            case ("text", text):
                return text
            case ("class", letters):
                return chance.choice(letters)
            case ("rule", name):
                return self.sample(chance, budget - 1, self.rules[name])
            case ("repeat", item, low, high):
                most = low if budget < 0 else min(low + MOST_REPEATS, high if high is not None else low + MOST_REPEATS)
                return "".join(self.sample(chance, budget, item) for _ in range(chance.randint(low, most)))
        ways = part[1]
        if budget < 0:
            heights = [max((self._height(item) for item in way), default=0) for way in ways]
            ways = [way for way, height in zip(ways, heights, strict=True) if height == min(heights)]
        return "".join(self.sample(chance, budget, item) for item in chance.choice(ways))
