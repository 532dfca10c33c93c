"""Reads a GBNF grammar and makes random texts of it; for tests of what a grammar allows, without llama.cpp."""

from __future__ import annotations

import random
import re
from functools import cache

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


@cache  # a range over all of Unicode takes half a second
def members(is_negated: bool, text: str) -> tuple[str, ...]:
    items, chosen = characters(text), set()
    ranges = list(re.finditer(r"(\\x..|\\U.{8}|[^\\])-(\\x..|\\U.{8}|[^\\])", text)) if "-" in text[1:-1] else []
    for match in ranges:
        low, high = characters(match[1])[0], characters(match[2])[0]
        chosen |= {chr(code) for code in range(ord(low), ord(high) + 1)}
    chosen |= set(items) if not ranges else {item for item in items if item != "-"}
    return tuple(sorted(set(LETTERS) - chosen if is_negated else chosen))


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
            heights = {name: 1 + self._height(part) for name, part in self.rules.items()}
            if heights == self._heights:
                break
            self._heights = heights

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
        heights = [max((self._height(item) for item in way), default=0) for way in ways]
        if budget < 0:
            ways = [way for way, height in zip(ways, heights, strict=True) if height == min(heights)]
        return "".join(self.sample(chance, budget, item) for item in chance.choice(ways))
