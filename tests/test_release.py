"""A release has the version of its tag, and its changes."""

from __future__ import annotations

import datetime
import re
import runpy
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
DAY = datetime.date(2026, 12, 24)
SMALL = """# Changelog

## [Unreleased]

### Added

- Snow.

## [0.1.0] - 2026-11-22

### Added

- Rain.
"""


def test_the_changelog_has_unreleased_changes_first_then_each_version_with_its_day_the_newest_first() -> None:
    first, *versions = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", line) for line in versions]
    assert versions
    assert all(found)
    numbers = [tuple(map(int, match.groups()[:3])) for match in found if match]
    assert numbers == sorted(numbers, reverse=True)
    assert app.__version__ == ".".join(map(str, numbers[0]))


def test_a_cut_gives_the_unreleased_changes_a_version_and_a_day() -> None:
    cut = RELEASE["cut_changelog"](SMALL, "0.2.0", DAY)
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-24\n\n### Added\n\n- Snow.\n\n## [0.1.0]" in cut
    assert RELEASE["release_notes"](cut, "v0.2.0", "0.2.0") == "### Added\n\n- Snow."
    assert RELEASE["release_notes"](cut, "v0.1.0", "0.1.0") == "### Added\n\n- Rain."


@pytest.mark.parametrize(
    ("tag", "version", "words"),
    [
        ("v0.2.0", "0.1.0", "the tag must be v0.1.0"),
        ("0.1.0", "0.1.0", "the tag must be v0.1.0"),
        ("v0.2.0", "0.2.0", "no section of 0.2.0"),
    ],
)
def test_a_tag_that_is_not_the_version_or_has_no_changes_is_refused(tag: str, version: str, words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        RELEASE["release_notes"](SMALL, tag, version)


@pytest.mark.parametrize(
    ("changelog", "version", "words"),
    [
        (SMALL, "0.1.0", "has 0.1.0 already"),
        (SMALL, "v0.2.0", "no version"),
        (SMALL, "0.2", "no version"),
        (SMALL.replace("### Added\n\n- Snow.\n\n", ""), "0.2.0", "no unreleased changes"),
    ],
)
def test_a_cut_without_a_version_or_changes_is_refused(changelog: str, version: str, words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        RELEASE["cut_changelog"](changelog, version, DAY)


def test_the_version_that_a_release_compares_is_the_programs() -> None:
    assert RELEASE["current_version"]() == app.__version__
