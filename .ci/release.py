#!/usr/bin/env python3
"""A release: `.ci/release.py cut 0.2.0` gives the unreleased changes their version and date, in CHANGELOG.md and in
`app.__version__`; after the commit, `git tag v0.2.0` and a push of the tag build it. `.ci/release.py notes v0.2.0` is
what that build does first: it refuses a tag that isn't the program's version, and prints the changes.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHANGELOG, VERSION = ROOT / "CHANGELOG.md", ROOT / "app" / "__init__.py"
UNRELEASED = "## [Unreleased]\n"


def current_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', VERSION.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        sys.exit(f"{VERSION} has no __version__.")
    return found[1]


def release_notes(changelog: str, tag: str, version: str) -> str:
    """Return the changes of a version. Exits where the tag, the program and the changelog disagree."""
    if tag != f"v{version}":
        sys.exit(f"The tag is {tag}, but the program's version is {version}: the tag must be v{version}.")
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        sys.exit(f"CHANGELOG.md has no section of {version}: run .ci/release.py cut {version}.")
    return found[1].strip()


def cut_changelog(changelog: str, version: str, today: datetime.date) -> str:
    """Return the changelog with the unreleased changes under `version`. Exits without any, or for a bad version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(a\d+|b\d+|rc\d+)?", version):
        sys.exit(f"{version} is no version such as 0.2.0 or 0.2.0rc1.")
    if f"## [{version}]" in changelog:
        sys.exit(f"CHANGELOG.md has {version} already.")
    before, _, after = changelog.partition(UNRELEASED)
    if not re.match(r"\s*###", after):
        sys.exit("CHANGELOG.md has no unreleased changes.")
    return f"{before}{UNRELEASED}\n## [{version}] - {today:%Y-%m-%d}\n{after}"


def main(verb: str, argument: str) -> None:
    changelog = CHANGELOG.read_text(encoding="utf-8")
    if verb == "notes":
        print(release_notes(changelog, argument, current_version()))
        return
    if verb != "cut":
        sys.exit(__doc__)
    CHANGELOG.write_text(
        cut_changelog(changelog, argument, datetime.datetime.now(datetime.UTC).date()), encoding="utf-8"
    )
    source = VERSION.read_text(encoding="utf-8")
    VERSION.write_text(source.replace(f'"{current_version()}"', f'"{argument}"'), encoding="utf-8")
    print(f"CHANGELOG.md and app/__init__.py are those of {argument}. Commit them, then: git tag v{argument}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
