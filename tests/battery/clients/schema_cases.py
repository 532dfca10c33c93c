"""Whether every route accepts what its schema allows and rejects the rest as documented: Schemathesis on our document.

Run: `uv run python tests/battery/clients/schema_cases.py [--cases 2000] [--only TEXT]`. Each operation of the OpenAPI
document gets as many cases, good ones and spoilt ones, from a service of its own over the fake engine and a hub of
ours; Schemathesis is fetched by uv, or passed as --command. No answer may be a 5xx but 501, all must have a status, a
type and fields that the document names. It takes its time: --keep FILE notes what has been tried, so that the same
command goes on there, and --within SECONDS begins no further operation after that. Exits with 1 where one is wrong, and
with 2 where some are left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.bench.report import show
from tests.bench.served import Served, serve

__all__ = ["Tried"]

N_CTX = 160  # an answer ends with it at the latest; the guide's template alone takes 100
# Streams that only their client ends: an answer never comes whole.
_ENDLESS = {"GET /api/localllm/jobs/events", "GET /api/localllm/attend"}
_GUIDE = Path(__file__).parents[3] / "assets" / "guide" / "guide-Q8_0.gguf"
_COMMAND = "uv tool run --from schemathesis==4.32.5 schemathesis"
_CONFIG = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "4xx", "501"]\n'
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_N_CASES = re.compile(r"^\s*([\d,]+) generated", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tried:
    """The results of one operation; `failures` is the output of Schemathesis for failed cases."""

    operation: str
    n_cases: int
    seconds: float
    failures: str


def operations() -> list[str]:
    """Return method and path of each operation whose answer has an end."""
    with serve(_GUIDE, 0, engine="fake") as served:
        paths = served.http.get("/openapi.json").json()["paths"]
    named = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return [name for name in named if name not in _ENDLESS]


def attempt(served: Served, command: Sequence[str], operation: str, n_cases: int, folder: Path, most_s: float) -> Tried:
    """Have Schemathesis try one operation; several filters would let in what fits any of them."""
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    where = ("--include-name", operation, "-n", str(n_cases), "-c", _CHECKS)
    how = ("--phases", "examples,coverage,fuzzing", "--no-color", "--generation-database", "none")
    url = f"http://127.0.0.1:{served.port}/openapi.json"
    line = [*command, "--config-file", str(config), "run", url, *where, *how]
    begun_s = time.monotonic()
    try:
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=most_s)
    except subprocess.TimeoutExpired:
        return Tried(operation, 0, most_s, f"It did not end within {most_s:.0f} s.\n")
    found = _N_CASES.search(done.stdout)
    failures = "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]
    if not failures and served.model()["state"] == "failed":
        failures = "The engine has failed for good.\n"
    n_tried = int(found[1].replace(",", "")) if found else 0
    return Tried(operation, n_tried, round(time.monotonic() - begun_s, 1), failures)


def attempts(
    wanted: Sequence[str], command: Sequence[str], n_cases: int, within_s: float, most_s: float
) -> Iterator[Tried]:
    """Yield what came of each of the operations that are `wanted`, as far as they are begun `within_s`."""
    begun_s = time.monotonic()
    hub = HubServer(HubRepo.of("org/tiny-GGUF", {"tiny-Q8_0.gguf": _GUIDE}, tags=["gguf"]))
    with hub, tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": folder, "OLLAMA_MODELS": folder, "HF_TOKEN": ""}
        for operation in wanted:
            if time.monotonic() - begun_s > within_s:
                return
            with serve(_GUIDE, 0, "--ctx", str(N_CTX), engine="fake") as served:
                yield attempt(served, command, operation, n_cases, Path(folder), most_s)


def previous_results(path: Path | None) -> list[Tried]:
    """Return what was tried before."""
    if path is None or not path.exists():
        return []
    return [Tried(**json.loads(line)) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="of each operation beside those of coverage (2000)")
    parser.add_argument("--only", default="", help="a part of the operations that are tried, such as 'POST /api'")
    parser.add_argument("--keep", type=Path, help="where it is noted what was tried, which is not tried again")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin none after so many seconds")
    parser.add_argument("--most", type=float, default=1800.0, help="give up an operation after so many seconds (1800)")
    parser.add_argument("--command", default=_COMMAND, help=f"how Schemathesis is run ({_COMMAND})")
    options = parser.parse_args()
    tried = previous_results(options.keep)
    known = {item.operation for item in tried}
    wanted = [name for name in operations() if options.only in name and name not in known]
    for item in attempts(wanted, options.command.split(), options.cases, options.within, options.most):
        tried.append(item)
        print(f"{item.operation}: {item.n_cases} in {item.seconds} s\n{item.failures}", end="", flush=True)
        if options.keep:
            with options.keep.open("a") as notes:
                notes.write(json.dumps(asdict(item)) + "\n")
    n_left = len(wanted) + len(known) - len(tried)
    made = Table("operation", "cases", "s", "", box=None, pad_edge=False)
    for item in tried:
        made.add_row(item.operation, str(item.n_cases), str(item.seconds), "WRONG" if item.failures else "")
    show(made)
    print(f"{sum(item.n_cases for item in tried)} cases of {len(tried)} operations, {n_left} are left")
    sys.exit(1 if any(item.failures for item in tried) else 2 if n_left else 0)


if __name__ == "__main__":
    main()
