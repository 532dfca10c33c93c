"""Simple Python files to complete, copy and edit, made from corpus/python.txt.

Owns the filling of those patterns with names. Independent of tokens or of tasks.
"""

from __future__ import annotations

import random
import re
from functools import cache

from assets.guide.prose import invented_word, words
from assets.guide.topics import CORPUS

THINGS = words()["thing"]
QUANTITIES = words()["quantity"]
OTHER = {
    "name": ("name", "title", "label", "key", "person", "user_name", "wanted"),
    "text": ("text", "line", "sentence", "word", "value", "string", "content"),
    "path": ("path", "file_name", "source", "target", "file_path", "location"),
    "n": ("n", "number", "count", "k", "limit"),
    "i": ("i", "index", "position", "n"),
}
IMPORTS = (
    "import json\n",
    "import math\n",
    "import os\n",
    "from pathlib import Path\n",
    "import random\n",
    "import sys\n",
)
IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{2,}\b")
KEYWORDS = frozenset(words()["keyword"])


@cache
def _patterns() -> tuple[str, ...]:
    return tuple((CORPUS / "python.txt").read_text(encoding="utf-8").strip().split("\n---\n"))


def snippet(rng: random.Random) -> str:
    """Return one function or class."""
    code = _fill(rng.choice(_patterns()), rng)
    if rng.random() < 0.3:
        code = re.sub(r'^ +"""[^"]*"""\n', "", code, flags=re.MULTILINE)
    return code + "\n"


def program(rng: random.Random, n_parts: int) -> str:
    """Return a file of several functions and classes, sometimes with imports."""
    head = "".join(sorted(rng.sample(IMPORTS, rng.randint(1, 3)))) + "\n\n" if rng.random() < 0.4 else ""
    return head + "\n\n".join(snippet(rng) for _ in range(n_parts))


def file_name(rng: random.Random) -> str:
    return rng.choice((*THINGS, *QUANTITIES, invented_word(rng))) + rng.choice((".py", ".py", "s.py", "_test.py"))


def identifiers(code: str) -> list[str]:
    """Return the names in code that an edit may rename, each once."""
    return sorted({name for name in IDENTIFIER.findall(code) if name not in KEYWORDS})


def _fill(pattern: str, rng: random.Random) -> str:
    thing = rng.choice(THINGS) if rng.random() < 0.85 else invented_word(rng)
    first, second = rng.sample(QUANTITIES, 2)
    slots = {name: rng.choice(values) for name, values in OTHER.items()}
    slots |= {"x": thing, "xs": thing + "s", "a": first, "b": second}
    slots |= {"Thing": thing.title().replace("_", ""), "CONST": f"MAX_{thing.upper()}S"}
    slots |= {f"n{i}": str(rng.choice((rng.randint(1, 12), rng.randint(10, 500)))) for i in (1, 2, 3)}
    code = re.sub(r"\{(\w+)\}", lambda slot: slots[slot[1]], pattern.replace("{{{", "\0{").replace("}}}", "}\1"))
    return code.replace("\0", "{").replace("\1", "}").replace("{{", "{").replace("}}", "}")
