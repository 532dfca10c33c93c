"""The options that several commands share, by the name of the value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.options.option import Kind, Option, named

COMMON: Mapping[str, Option] = {
    name: named(name, row)
    for name, row in {
        "wants_json": Option(help="Print JSON.", kind=Kind.FLAG, default=False, flags=("--json",)),
        "assume_yes": Option(
            help="Don't ask for confirmation.",
            kind=Kind.FLAG,
            default=False,
            flags=("--yes", "-y"),
        ),
        "is_dry_run": Option(
            help="Show what would happen; change nothing.", kind=Kind.FLAG, default=False, flags=("--dry-run",)
        ),
        "output": Option(help="Output file.", kind=Kind.PATH, flags=("--output", "-o")),
        "limit": Option(help="Maximum number of results.", kind=Kind.INTEGER, least=1),
        "vram": Option(
            help="Plan for this GPU instead of yours; repeatable.",
            kind=Kind.TEXTS,
            default=(),
            metavar="NAME=SIZE[@SPEED]",
        ),
        "ram": Option(help="Plan for this memory, such as 16GiB@60GB/s.", metavar="SIZE[@SPEED]"),
        "system": Option(help="System prompt."),
        "max_tokens": Option(help="Maximum length of the answer in tokens.", kind=Kind.INTEGER, least=1),
        "temperature": Option(
            help="Temperature; 0 is greedy.", kind=Kind.NUMBER, flags=("--temp",), least=-math.inf, most=math.inf
        ),
        "seed": Option(help="Random seed.", kind=Kind.INTEGER, least=-math.inf, most=math.inf),
        "think": Option(
            help="Reasoning before the answer: off, low, medium, high, or a number of tokens.", metavar="LEVEL"
        ),
        "stats": Option(help="Print times and rates to stderr.", kind=Kind.FLAG, default=False),
    }.items()
}
