"""Each promise of .github/SECURITY.md says to whom it is made, and is held by tests that exist and that run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BATTERY = "".join((ROOT / "tests" / "battery" / name).read_text("utf-8") for name in ("README.md", "trials.py"))
POLICY = ROOT / ".github" / "SECURITY.md"
_ROW = re.compile(r"\| (?P<promise>[^|]+\.) \| (?P<whom>[^|]+) \| (?P<tests>(`tests/[^`]+` ?)+) \|")


def _rows() -> list[dict[str, str]]:
    lines = POLICY.read_text(encoding="utf-8").splitlines()
    begin = lines.index("|---|---|---|") + 1
    table = lines[begin : lines.index("", begin)]
    matches = [(line, _ROW.fullmatch(line)) for line in table]
    assert [line for line, match in matches if match is None] == []
    return [match.groupdict() for _, match in matches if match is not None]


ROWS = _rows()


@cache
def _tests_of(file: Path) -> dict[str, list[str]]:
    """Return the tests of a file, with what decorates each and the whole file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name: [ast.unparse(decorator) for decorator in node.decorator_list]
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_promises_are_made_once_each() -> None:
    promises = [row["promise"] for row in ROWS]
    assert len(promises) > 40
    assert len(set(promises)) == len(promises)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["promise"][:60])
def test_a_promise_is_held_by_tests_that_exist(row: dict[str, str]) -> None:
    named = re.findall(r"`([^`]+)`", row["tests"])
    assert len(set(named)) == len(named)
    for each in named:
        file, _, test = each.partition("::")
        assert (ROOT / file).is_file(), each
        if file.startswith("tests/battery/"):  # programs, which say by their exit status whether the promise holds
            assert file.rpartition("/")[2].removesuffix(".py") in BATTERY, each
            assert not test
            continue
        decorators = _tests_of(ROOT / file).get(test)
        assert decorators is not None, each
        assert not any("xfail" in decorator or "mark.skip(" in decorator for decorator in decorators), each


def test_a_file_that_is_named_outside_the_table_exists() -> None:
    text = POLICY.read_text(encoding="utf-8")
    for file in set(re.findall(r"`(tests/[\w/]+(?:\.py)?/?)", text)):
        assert (ROOT / file).exists(), file
