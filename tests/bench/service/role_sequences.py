"""Count the prompts in which a chat template loses a message, refuses it, or changes what it takes by itself.

    python -m tests.bench.service.role_sequences [FOLDER] [--longest N] [--table FILE]

FOLDER has chat templates (*.jinja); without it those beside llama.cpp's source are read, where uv unpacked that. Each
renders every sequence of roles, calls and results of up to N messages (3), the last one a question or a result, and
longer ones that are hard, in every dialect, with a tool and without: see tests/app/service/role_sequences.py. Prints
the counts of each template that has any, with a sequence. --table writes what each template takes, which tests have as
data.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from itertools import product
from pathlib import Path

from tests.app.service.role_sequences import DIALECTS, HARD, fault_of, published_templates, row_of, served


async def counted(template: str, sequences: list[str]) -> tuple[Counter[str], dict[str, str]]:
    """Return the counts of faults by dialect, and a sequence of each."""
    model, counts, examples = served(template), Counter[str](), dict[str, str]()
    for letters, dialect, has_tools in product(sequences, DIALECTS, (False, True)):
        counts["prompts"] += 1
        if fault := await fault_of(model, letters, dialect, has_tools=has_tools):
            counts[f"{fault}, {dialect}"] += 1
            examples.setdefault(fault, letters)
    return counts, examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--longest", type=int, default=3)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        os.environ["LLAMA_CPP_TEMPLATES"] = arguments.folder
    templates = published_templates()
    if arguments.table:
        rows = {name: asyncio.run(row_of(served(template))) for name, template in templates.items()}
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        arguments.table.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        return
    lengths = range(arguments.longest)
    sequences = ["".join(roles) + end for n in lengths for roles in product("SUACDBT", repeat=n) for end in "UT"]
    sequences += [letters for letters in HARD if letters not in sequences]
    total: Counter[str] = Counter()
    for name, template in templates.items():
        counts, examples = asyncio.run(counted(template, sequences))
        total += counts
        if examples:
            print(json.dumps({"template": name, **counts, "examples": examples}), flush=True)
    print(json.dumps({"templates": len(templates), "sequences": len(sequences), **total}))


if __name__ == "__main__":
    main()
