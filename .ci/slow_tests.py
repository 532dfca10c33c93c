#!/usr/bin/env python3
"""Print the files of slow tests that CI runs today: those of what changed lately, and a third of the others, another
one each day. All of them take two processors half an hour; `SLOW=all .ci/run slow` runs them all, as before a release.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Collection, Iterator
from datetime import date
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
N_PARTS = 3
N_COMMITS = 20  # of a landing, and of those before it on which CI may have failed


def test_file_of(path: str) -> str:
    """Return the file of tests that mirrors `path`, which may be one itself."""
    file = PurePosixPath(path)
    is_test = file.parts[0] == "tests" and file.name.startswith("test_")
    return path if is_test else str(PurePosixPath("tests", *file.parts[:-1], f"test_{file.name}"))


def chosen(files: Collection[str], changed: Collection[str], day: int) -> Iterator[str]:
    """Yield those of `files` whose tests, or what these test, is among `changed`, and those whose turn is on `day`."""
    touched = set(map(test_file_of, changed))
    for file in files:
        if file in touched or zlib.crc32(file.encode()) % N_PARTS == day % N_PARTS:
            yield file


def main() -> None:
    log = ["git", "log", f"-{N_COMMITS}", "--name-only", "--format="]
    changed = subprocess.run(log, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    print(*chosen(files, [path for path in changed if path], date.today().toordinal()), sep="\n")


if __name__ == "__main__":
    main()
