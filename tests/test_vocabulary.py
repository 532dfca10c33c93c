"""The project speaks the field's words: names that were replaced do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RETIRED = ROOT / "tests" / "retired_names.txt"
FOLDERS = ("app", "assets", "offload", "quantizer", "tests", "tui")
SUFFIXES = frozenset({".md", ".mjs", ".py", ".tcss", ".toml"})
# A changelog speaks of the past, and the guide's corpus and text collections are data.
EXEMPT = ("CHANGELOG.md", "assets/guide/corpus", "assets/text")


def retired_names() -> list[str]:
    """Return the names of the list, comments left out."""
    lines = (line.partition("#")[0].strip() for line in RETIRED.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def text_files() -> Iterator[Path]:
    """Yield every file whose words are checked."""
    yield from (path for path in ROOT.glob("*") if path.suffix in SUFFIXES and path.name not in EXEMPT)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(EXEMPT):
                yield path


def test_no_retired_name_is_left_in_any_file() -> None:
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, retired_names())) + r")(?!\w)")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_the_list_of_retired_names_is_sorted_and_without_doubles() -> None:
    names = retired_names()
    assert names == sorted(set(names))
