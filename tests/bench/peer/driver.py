"""Run the same work against any OpenAI-compatible server and print what it took.

Run: `uv run python tests/bench/peer/driver.py URL [--only WORK,...] [--pid PID] [--json OUT]`. Owns the command; the
work itself is in app/bench and in the files beside this one. It neither starts nor stops servers.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from app.bench.client import BenchClient
from app.bench.measurement import Figure, Measurement, Results, line, table
from app.bench.workloads import WORKLOADS, Bench, Workload, measured_text, run_workloads
from quantizer.system.errors import UserError
from tests.bench.peer.intrusion import intrusion
from tests.bench.peer.memory import Memory, memory_of
from tests.bench.peer.restart import restart_workloads
from tests.bench.report import show

__all__ = ["measure"]

_MEGABYTE = 1_000_000
_DEFAULT_WORK: dict[str, Workload] = {**WORKLOADS, "intrusion": intrusion}
_NAMES = (*_DEFAULT_WORK, *restart_workloads(None))


def _print_figure(figure: Figure) -> None:
    print(line(figure), file=sys.stderr, flush=True)


async def measure(options: argparse.Namespace) -> Results:
    """Do the work that `options` name and return what was measured. Raises UserError."""
    works = {**_DEFAULT_WORK, **restart_workloads(options.conversation)}
    async with BenchClient(options.url, options.model, options.api_key) as client:
        model = await client.wait_ready(options.wait)
        bench = Bench(client, await measured_text(client, options.seed), options.runs)
        figures: list[Figure] = []
        memory: list[Memory] = []
        for name in options.only:
            figures += await run_workloads(
                works, [name], bench, lambda figure: print(line(figure), file=sys.stderr, flush=True)
            )
            if options.pid:
                memory.append(memory_of(options.pid))
    return Results.of(options.label or options.url, model, [*figures, *_highest(memory)])


def _highest(memory: Sequence[Memory]) -> list[Measurement]:
    """Return the highest figures of all looks at the server's memory."""
    if not memory:
        return []
    rss, private = max(look.rss_bytes for look in memory), max(look.private_bytes for look in memory)
    return [
        Measurement("memory", "resident", "MB", (rss / _MEGABYTE,)),
        Measurement("memory", "private", "MB", (private / _MEGABYTE,)),
    ]


def _work(names: str) -> list[str]:
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in _NAMES]:
        raise argparse.ArgumentTypeError(f"no work {', '.join(unknown)}; there is {', '.join(_NAMES)}")
    return chosen


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the server listens, such as http://127.0.0.1:8080")
    parser.add_argument("--only", type=_work, default=list(_DEFAULT_WORK), metavar="WORK,...", help=", ".join(_NAMES))
    parser.add_argument("--runs", type=int, default=3, help="runs of each, whose median counts (3)")
    parser.add_argument("--pid", type=int, default=0, help="the server's process, whose memory is then measured too")
    parser.add_argument("--label", default="", help="what to call this server in tables")
    parser.add_argument("--json", type=Path, metavar="OUT", help="keep all samples here, for report.py")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of all text; drawn when not given")
    parser.add_argument("--conversation", type=Path, metavar="FILE", help="written by `leave`, read by `back`")
    parser.add_argument("--model", default="", help="the first that the server lists, when not given")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--wait", type=float, default=120.0, metavar="S", help="seconds for the server to get ready")
    return parser.parse_args()


def main() -> None:
    options = _options()
    try:
        results = asyncio.run(measure(options))
    except UserError as error:
        sys.exit(str(error))
    if options.json:
        results.save(options.json)
    show(table(results), results)
    if results.unmeasured:
        sys.exit(1)


if __name__ == "__main__":
    main()
