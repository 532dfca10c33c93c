"""Does every route answer whatever its schema allows, and refuse the rest? Schemathesis on our OpenAPI document.

Run: `uv run python tests/bench/schema_cases.py [--cases 2000] [--only TEXT]`. Each operation of the document gets as
many cases, good ones and spoilt ones, from a service over the fake engine; Schemathesis is fetched by uv, or given with
--command. No answer may be a 5xx but 501, all must have a status and a type that the document names. The document does
not say what is in answers, so their fields are left to the tests and the real clients. Exits with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import show
from rich.table import Table
from served import Served, serve

__all__ = ["Tried"]

N_CTX = 64  # an answer ends with it at the latest
MOST_S = 590
_GUIDE = Path(__file__).parents[2] / "assets" / "guide" / "guide-Q8_0.gguf"
_COMMAND = "uv tool run --from schemathesis==4.32.5 schemathesis"
_CONFIG = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "4xx", "501"]\n'
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_N_CASES = re.compile(r"^\s*([\d,]+) generated", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the cases of one operation; `told` is what Schemathesis says of those that went wrong."""

    operation: str
    n_cases: int
    told: str


def operations(served: Served, only: str) -> Iterator[tuple[str, str]]:
    """Yield method and path of each operation whose path has `only` in it."""
    for path, methods in served.http.get("/openapi.json").json()["paths"].items():
        yield from ((method.upper(), path) for method in methods if only in path)


def attempt(served: Served, command: Sequence[str], method: str, path: str, n_cases: int, folder: Path) -> Tried:
    """Have Schemathesis try one operation."""
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    where = ("--include-method", method, "--include-path", path, "-n", str(n_cases), "-c", _CHECKS)
    how = ("--phases", "examples,coverage,fuzzing", "--no-color", "--generation-database", "none")
    url = f"http://127.0.0.1:{served.port}/openapi.json"
    line = [*command, "--config-file", str(config), "run", url, *where, *how]
    try:
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        return Tried(f"{method} {path}", 0, f"It did not end within {MOST_S} s.\n")
    found = _N_CASES.search(done.stdout)
    told = "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]
    return Tried(f"{method} {path}", int(found[1].replace(",", "")) if found else 0, told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="of each operation beside those of coverage (2000)")
    parser.add_argument("--only", default="", help="a part of the paths that are tried")
    parser.add_argument("--command", default=_COMMAND, help=f"how Schemathesis is run ({_COMMAND})")
    options = parser.parse_args()
    made = Table("operation", "cases", "", box=None, pad_edge=False)
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory() as folder, serve(_GUIDE, 0, "--ctx", str(N_CTX), engine="fake") as served:
        for method, path in operations(served, options.only):
            tried.append(attempt(served, options.command.split(), method, path, options.cases, Path(folder)))
            print(f"{tried[-1].operation}: {tried[-1].n_cases}\n{tried[-1].told}", end="", flush=True)
            made.add_row(tried[-1].operation, str(tried[-1].n_cases), "WRONG" if tried[-1].told else "")
        is_ready = served.model()["state"] == "ready"
    show(made)
    print(f"{sum(item.n_cases for item in tried)} cases of {len(tried)} operations; the engine is ready: {is_ready}")
    sys.exit(any(item.told for item in tried) or not is_ready)


if __name__ == "__main__":
    main()
