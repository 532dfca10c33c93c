#!/usr/bin/env python3
"""Renew the versions that pyproject.toml pins for uv (`tool.uv.constraint-dependencies`): the newest that the project's
own bounds allow, for all systems and Pythons. A lock file would have them too, with the addresses of an index.

Run it in the clone, then the tests, then commit.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
PINS = re.compile(r"(?<=^constraint-dependencies = \[\n)(    \".*\",\n)*(?=\]$)", re.MULTILINE)


def newest() -> list[str]:
    """Return a pin for each package but those that only train the guide, which nobody but its trainer installs."""
    command = ["uv", "export", "--quiet", "--upgrade", "--all-extras", "--group", "dev", "--group", "fuzz"]
    command += ["--no-emit-project", "--no-hashes", "--no-header", "--no-annotate"]
    exported = subprocess.run(command, cwd=PROJECT.parent, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = exported.splitlines()
    n_versions = Counter(line.partition("==")[0] for line in lines)
    # a package that is needed on one system only is pinned for all; one with several versions says where each belongs
    return sorted(line if n_versions[line.partition("==")[0]] > 1 else line.partition(" ;")[0] for line in lines)


def main() -> None:
    former = PROJECT.read_text(encoding="utf-8")
    try:
        PROJECT.write_text(PINS.sub("", former), encoding="utf-8")
        pins = newest()
    except BaseException:
        PROJECT.write_text(former, encoding="utf-8")
        raise
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    PROJECT.write_text(PINS.sub(lines.replace("\\", r"\\"), former), encoding="utf-8")
    print(f"{len(pins)} packages are pinned.")


if __name__ == "__main__":
    main()
