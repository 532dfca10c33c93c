"""Patterns of file names as .gitignore has them, and as a search takes them. Pure.

Source of the rules: gitignore(5). A pattern of others may take long to match: whoever matches many can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_LINES, _MAX_CHARACTERS = 2_000, 500  # of one file


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern for paths below `folder`, the path of its .gitignore's folder with a final slash, "" for the first."""

    folder: str
    pattern: re.Pattern[str]
    is_negated: bool
    is_for_folders: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that hold in a folder: those of the folders above first. Paths have slashes and begin where the first
    rules were read."""

    rules: tuple[_Rule, ...] = ()

    def with_file(self, folder: str, text: str) -> IgnoreRules:
        """Return the rules below `folder` ("" for the first), whose .gitignore has `text`."""
        return IgnoreRules((*self.rules, *_rules(f"{folder}/" if folder else "", text)))

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the last rule that matches `path` excludes it."""
        for rule in reversed(self.rules):
            is_meant = (is_folder or not rule.is_for_folders) and path.startswith(rule.folder)
            if is_meant and rule.pattern.fullmatch(path[len(rule.folder) :]):
                return not rule.is_negated
        return False


def matches_glob(pattern: str, path: str) -> bool:
    """Return whether `path` has the form of `pattern`: of its name, or with a slash within of the whole."""
    return _compiled(pattern.removeprefix("/"), is_whole="/" in pattern.rstrip("/")).fullmatch(path) is not None


def _rules(folder: str, text: str) -> Iterator[_Rule]:
    for line in text.splitlines()[:_MAX_LINES]:
        line = re.sub(r"(?<!\\) +$", "", line)
        if not line or line.startswith("#") or len(line) > _MAX_CHARACTERS:
            continue
        is_negated = line.startswith("!")
        pattern = line.removeprefix("!")
        is_for_folders = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        if pattern:
            is_whole = "/" in pattern
            compiled = _compiled(pattern.removeprefix("/"), is_whole=is_whole)
            yield _Rule(folder, compiled, is_negated, is_for_folders)


def _compiled(pattern: str, *, is_whole: bool) -> re.Pattern[str]:
    expression = "".join(_translated(pattern))
    return re.compile(expression if is_whole else f"(?:.*/)?{expression}", re.DOTALL)


def _translated(pattern: str) -> Iterator[str]:
    place = 0
    while place < len(pattern):
        rest = pattern[place:]
        if rest.startswith("**/") and (place == 0 or pattern[place - 1] == "/"):
            yield "(?:.*/)?"
            place += 3
        elif rest == "**" and (place == 0 or pattern[place - 1] == "/"):
            yield ".+"
            place += 2
        elif rest[0] == "*":
            yield "[^/]*"
            place += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            yield "[^/]"
            place += 1
        elif rest[0] == "[" and (found := _class(rest)) is not None:
            yield found[0]
            place += found[1]
        elif rest[0] == "\\" and len(rest) > 1:
            yield re.escape(rest[1])
            place += 2
        else:
            yield re.escape(rest[0])
            place += 1


def _class(text: str) -> tuple[str, int] | None:
    """Return the expression of the class that `text` begins with and its length, None for one that does not end."""
    end = text.find("]", 3 if text[1:2] in ("!", "^") else 2)
    if end < 0:
        return None
    members = text[1:end]
    negation = "^" if members[0] in "!^" else ""
    inner = members[1:] if negation else members
    escaped = re.sub(r"([\[\]\\^&~|])", r"\\\1", inner)
    try:
        re.compile(f"[{negation}{escaped}]")
    except re.error:  # such as a range that goes backwards
        return None
    return f"(?!/)[{negation}{escaped}]", end + 1
