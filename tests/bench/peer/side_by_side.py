"""Print what localllm and llama-server take for the same work, in turns, model by model.

Run: `uv run python tests/bench/peer/side_by_side.py LLAMA_SERVER [--models SHAPE,...] [--only WORK,...] [--json
FOLDER]`, on a quiet machine. Each round starts all servers and gives them the same text, each case to one after the
other, in a new order every time, `--passes` times. A machine may grow slower or faster within a minute, so what is
compared are samples taken one after the other: a ratio is the median of theirs. It says how many times better ours is
than llama-server by default, and than its best flags for that case; `own` is an edit's rate over ours of the same work
without drafts. Shapes that are not in `--folder` are made there, and each is tuned once, as `--tune` says. Exits with 1
where a line of `AIMS` is missed. On a busy machine `--processor-time` counts the seconds that a server computed, with
one thread each; needs Linux. `--busy N` measures beside N programs that compute all the time, as a compiler would.
`--ik SERVER` measures ik_llama.cpp's llama-server too, with the best of its flags in columns of its own: no aim is held
against it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import psutil
from rich.table import Table

from app.bench.client import BenchClient
from app.bench.measurement import Figure, Measurement, Results, Unmeasured, line
from app.bench.workloads import NO_DRAFTS, WORKLOADS, Bench, RandomText, measured_text
from app.engine.tuning.tune_results import DISTURBED
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UserError
from quantizer.system.process import python_command
from quantizer.write.quantize import execute
from tests.bench.models.make_model import plan_random_model
from tests.bench.models.shapes import SHAPES
from tests.bench.peer.categories import CATEGORIES, Sample, categories, read_samples, without_drafts
from tests.bench.peer.intrusion import intrusion
from tests.bench.peer.peer import (
    ATTENTION,
    DEFAULT,
    IK_ATTENTION,
    IK_FLAGS,
    IK_SLOTS,
    IK_SPECULATION,
    PEER_FLAGS,
    SLOTS,
    SPECULATION,
    serve_peer,
)
from tests.bench.peer.processor_clock import processor_clock
from tests.bench.peer.restart import restart_workloads
from tests.bench.report import show
from tests.bench.served import serve

__all__ = ["AIMS", "WORKS", "Aim", "Side", "SideBySide", "missed", "rows"]

OURS = "localllm"
_SHAPES = ("llama-3.2-1b", "gemma3-1b", "gpt-oss-2b", "lfm2-350m", "qwen3.5-0.8b", "mamba2-370m")
_TYPE = "Q4_K_M"
_READY_TIMEOUT_S = 180.0
_TYPES_FILE = "types.json"
_TUNED_FILES = ("selftest.json", _TYPES_FILE, "tune.json")
_MOST_TRIES = 20  # of an idle measurement that other programs disturb
# What measures the types of weights, and what then tunes a model.
_TUNERS = {
    "idle": (
        python_command("app.engine.tuning.type_tuner", "{threads}", "--idle"),
        python_command("app.engine.tuning.tuner", "{model}", "{threads}", "--idle"),
    ),
    "command": (
        python_command("app.cli.main", "tune", "--types", "--threads", "{threads}"),
        python_command("app.cli.main", "tune", "{model}", "--threads", "{threads}"),
    ),
}
_RESTART = "restart"  # of the server, between the two halves of this work

_COMPUTE = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()
while True:
    pass
"""

# Each work, and the flags of llama-server and of ik_llama.cpp's that may win it.
WORKS: dict[str, tuple[str, ...]] = {
    "decode": (*ATTENTION, *IK_ATTENTION),
    "prefill": (*ATTENTION, *IK_ATTENTION),
    "turns": (*ATTENTION, *IK_ATTENTION),
    _RESTART: (*ATTENTION, *IK_ATTENTION),
    "clients": (*SLOTS, *IK_SLOTS),
    "intrusion": (*ATTENTION, *IK_ATTENTION),
    "edit": (*SPECULATION, *IK_SPECULATION),
    "categories": (*SPECULATION, *IK_SPECULATION),
}
_DEFAULT_WORKS = [name for name in WORKS if name != "categories"]


@dataclass(frozen=True, slots=True)
class Aim:
    """What a case must reach: times better than the best of llama-server, and than our own plain decode."""

    over_best: float = 1.0
    over_own: float = 0.0


_DEFAULT_AIM = Aim()
AIMS: dict[tuple[str, str], Aim] = {
    ("edit", "rename"): Aim(over_own=1.5),
    ("edit", "copy"): Aim(over_own=2.2),
    ("edit", "novel"): Aim(over_own=0.98),
    **{("categories", category): Aim(over_own=0.98) for category in CATEGORIES},
    ("first token", "back after 3 chats"): Aim(over_best=1 / 0.3),
    (_RESTART, "next turn"): Aim(over_best=1 / 0.3),
}


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started: its address, and its processes."""

    url: str
    process_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """A server under comparison; `start` is given the folder that its restart finds again."""

    name: str
    start: Callable[[Path], AbstractContextManager[Running]]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """What all sides took for one model; `ours` and each of `peers` has the samples of all rounds."""

    ours: Results
    peers: tuple[Results, ...]
    load: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One case: ours, llama-server by default, its best, and the best of ik_llama.cpp's; None where a side has no
    figure."""

    ours: Measurement
    default: Measurement | None
    best: tuple[str, Measurement] | None
    own: float | None
    ik: tuple[str, Measurement] | None = None

    @property
    def aim(self) -> Aim:
        return AIMS.get((self.ours.work, self.ours.case), _DEFAULT_AIM)

    def misses(self) -> Iterator[str]:
        """Yield what falls short of the aim."""
        aim, name = self.aim, f"{self.ours.work} {self.ours.case}"
        if self.best and (gain := _gain(self.ours, self.best[1])) < aim.over_best:
            yield f"{name}: {gain:.2f} × llama-server's best ({self.best[0]}), not {aim.over_best:.2f}"
        if aim.over_own and self.own is not None and self.own < aim.over_own:
            yield f"{name}: {self.own:.2f} × its own plain decode, not {aim.over_own:g}"


def _gain(ours: Measurement, other: Measurement) -> float:
    """Return how many times better ours is: the median over pairs of samples that were taken in the same pass."""
    if len(ours.samples) != len(other.samples):  # a server failed half-way
        return ours.gain_over(other)
    pairs = zip(ours.samples, other.samples, strict=True)
    return median(replace(ours, samples=(one,)).gain_over(replace(other, samples=(two,))) for one, two in pairs)


def _gain_over(ours: Measurement, other: tuple[str, Measurement]) -> float:
    return _gain(ours, other[1])


def rows(measured: SideBySide) -> list[Row]:
    """Return a row for each case that ours has."""
    by_side = {peer.label: {item.key: item for item in peer.measurements} for peer in measured.peers}
    plain = {item.key: item for item in measured.ours.measurements if NO_DRAFTS in item.case}
    found = []
    for item in measured.ours.measurements:
        others = [(name, figures[item.key]) for name, figures in by_side.items() if item.key in figures]
        best, ik = (
            min(
                (other for other in others if (other[0] in IK_FLAGS) is is_ik),
                key=partial(_gain_over, item),
                default=None,
            )
            for is_ik in (False, True)
        )
        plain_case = NO_DRAFTS if item.work == "edit" else without_drafts(item.case)
        own = _gain(item, plain[key]) if (key := replace(item, case=plain_case).key) in plain else None
        found.append(Row(item, by_side.get(DEFAULT, {}).get(item.key), best, own, ik))
    return found


def missed(measured: SideBySide) -> list[str]:
    """Return a line for each aim that is missed."""
    return [text for row in rows(measured) for text in row.misses()]


def compared(measured: SideBySide) -> Table:
    """Return the rows as a table."""
    low, high = measured.load
    made = Table(
        title=f"{measured.ours.model}, load {low:.1f}–{high:.1f}", box=None, pad_edge=False, title_justify="left"
    )
    for name in ("work", "case"):
        made.add_column(name)
    for name in (OURS, "own", DEFAULT, "×", "best", "×"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("flags")
    found = rows(measured)
    has_ik = any(row.ik for row in found)
    for name in ("ik", "×", "flags") if has_ik else ():
        made.add_column(name, no_wrap=True)
    made.add_column("")
    for row in found:
        made.add_row(*_cells(row, has_ik=has_ik))
    return made


def _cells(row: Row, *, has_ik: bool) -> Iterator[str]:
    yield row.ours.work
    yield row.ours.case
    yield f"{row.ours.value:.4g} {row.ours.unit}"
    yield "" if row.own is None else f"{row.own:.2f}"
    for other in (row.default, row.best[1] if row.best else None):
        yield f"{other.value:.4g}" if other else ""
        yield f"{_gain(row.ours, other):.2f}" if other else ""
    yield row.best[0] if row.best else ""
    if has_ik:
        name, ik = row.ik or ("", None)
        yield f"{ik.value:.4g}" if ik else ""
        yield f"{_gain(row.ours, ik):.2f}" if ik else ""
        yield name
    yield "missed" if any(row.misses()) else ""


def _sides(options: argparse.Namespace, model: Path, tuned: Path, peers: Sequence[str]) -> list[Side]:
    threads = 1 if options.processor_time else 0
    sides = [Side(OURS, partial(_start_ours, model, tuned, threads))]
    common = ("-c", str(options.ctx), *(("-t", "1", "-tb", "1") if threads else ()))
    for name in peers:
        flags = (*common, *(IK_FLAGS.get(name) or PEER_FLAGS.get(name, ())))
        sides.append(
            Side(name, partial(_start_peer, options.ik if name in IK_FLAGS else options.llama_server, model, flags))
        )
    return sides


@contextmanager
def _start_ours(model: Path, tuned: Path, threads: int, folder: Path) -> Iterator[Running]:
    for name in _TUNED_FILES:
        if (tuned / name).is_file():
            shutil.copy(tuned / name, folder)
    with serve(model, 0, cache_dir=str(folder), threads=str(threads)) as served:
        yield Running(f"http://127.0.0.1:{served.port}", (served.process.pid, served.worker.pid))


@contextmanager
def _start_peer(binary: Path, model: Path, flags: tuple[str, ...], folder: Path) -> Iterator[Running]:
    with serve_peer(binary, model, folder, flags) as (url, process_id):
        yield Running(url, (process_id,))


class _Turn:
    """One server that does one work `n_passes` times, a case at a time. One that fails is unmeasured from there on."""

    def __init__(
        self,
        side: Side,
        folder: Path,
        work: str,
        seed: int,
        n_passes: int,
        samples: Sequence[Sample],
        *,
        in_cpu_s: bool,
    ) -> None:
        self.figures: list[Figure] = []
        self._samples = samples
        self._name, self._work, self._n_passes = side.name, work, n_passes
        self._cases = self._measured(side, folder, seed, in_cpu_s=in_cpu_s)

    async def step(self) -> bool:
        """Measure the next case, the first time only start the server; return whether there may be more."""
        try:
            figure = await anext(self._cases)
        except StopAsyncIteration:
            return False
        except UserError as error:
            figure = Unmeasured(self._work, "", str(error))
        if figure:
            print(f"{self._name}: {line(figure)}", file=sys.stderr, flush=True)
            self.figures.append(figure)
        return True

    async def close(self) -> None:
        await self._cases.aclose()

    async def _measured(
        self, side: Side, folder: Path, seed: int, *, in_cpu_s: bool
    ) -> AsyncGenerator[Figure | None, None]:
        of_kinds = partial(categories, samples=self._samples, with_plain=self._name == OURS)
        more = {"intrusion": intrusion, "categories": of_kinds}
        work = (WORKLOADS | more | restart_workloads(folder / "conversation.json"))[self._work]
        with side.start(folder) as running:
            clock = processor_clock(running.process_ids) if in_cpu_s else time.perf_counter
            async with BenchClient(running.url, clock=clock) as client:
                await client.wait_ready(_READY_TIMEOUT_S)
                text = await measured_text(client, seed)
                yield None
                for number in range(self._n_passes):
                    # What follows is the same for all, however many requests went before.
                    prose = RandomText(seed + 1 + number)
                    prose.tokens_per_word = text.tokens_per_word
                    async with aclosing(work(Bench(client, prose, 1))) as figures:
                        async for figure in figures:
                            yield figure


async def _in_turns(turns: Sequence[_Turn], order: random.Random) -> None:
    """Start all servers, then measure each case at one after the other, in another order every time; end them."""
    going = list(turns)
    try:
        while going:
            order.shuffle(going)
            going = [turn for turn in going if await turn.step()]
    finally:
        for turn in turns:
            await turn.close()


@contextmanager
def _busy(n_programs: int) -> Iterator[None]:
    """Run programs that compute all the time; each ends with its stdin."""
    programs = [subprocess.Popen((sys.executable, "-c", _COMPUTE), stdin=subprocess.PIPE) for _ in range(n_programs)]
    try:
        yield
    finally:
        for program in programs:
            program.communicate()


def _one_round(
    sides: Sequence[Side], work: str, seed: int, n_passes: int, samples: Sequence[Sample], *, in_cpu_s: bool
) -> dict[str, list[Figure]]:
    """Return the figures of each side."""
    found: dict[str, list[Figure]] = {side.name: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="side-by-side-", ignore_cleanup_errors=True) as folder:
        for part in ("leave", "back") if work == _RESTART else (work,):
            turns = []
            for number, side in enumerate(sides):
                own = Path(folder, str(number))
                own.mkdir(exist_ok=True)
                n_times = 1 if work == _RESTART else n_passes  # a server restarts once
                turns.append(_Turn(side, own, part, seed, n_times, samples, in_cpu_s=in_cpu_s))
            asyncio.run(_in_turns(turns, random.Random(seed)))
            for side, turn in zip(sides, turns, strict=True):
                found[side.name] += turn.figures
    return found


def _merged(label: str, model: str, figures: Sequence[Figure]) -> Results:
    """Return one measurement of each case with the samples of all rounds."""
    found: dict[tuple[str, str, str], Measurement] = {}
    for item in figures:
        if isinstance(item, Measurement):
            before = found.get(item.key)
            found[item.key] = replace(item, samples=before.samples + item.samples) if before else item
    return Results.of(label, model, [*found.values(), *(item for item in figures if isinstance(item, Unmeasured))])


def _measure(options: argparse.Namespace, shape: str) -> SideBySide:
    model, tuned = _prepared(options.folder, shape, options.tune, in_cpu_s=options.processor_time)
    samples = read_samples(options.samples, options.n_samples)
    figures: dict[str, list[Figure]] = {OURS: []}
    loads: list[float] = []
    for work in options.only:
        peers = [
            peer
            for peer in WORKS[work]
            if (peer not in IK_FLAGS or options.ik) and (not options.peers or peer in options.peers)
        ]
        for number in range(options.rounds):
            loads.append(psutil.getloadavg()[0])
            sides = _sides(options, model, tuned, peers)
            seed = options.seed + number * options.passes
            with _busy(options.busy):
                done = _one_round(sides, work, seed, options.passes, samples, in_cpu_s=options.processor_time)
            for name, of_round in done.items():
                figures.setdefault(name, []).extend(of_round)
    ours, *others = (_merged(label, shape, of_it) for label, of_it in figures.items())
    return SideBySide(ours, tuple(others), (min(loads), max(loads)))


def _prepared(folder: Path, name: str, tune: str, *, in_cpu_s: bool) -> tuple[Path, Path]:
    """Return the model called `name`, a shape or a file, and the folder of what was measured about it. The types of
    weights are measured before any model, which is then tuned with copies of the slow ones, as an installed localllm
    does it."""
    model = Path(name) if name.endswith(".gguf") else folder / f"{name}.gguf"
    way = f"{tune}-processor-time" if in_cpu_s else tune
    types, tuned = folder / f"types-{way}", folder / f"tuned-{way}-{model.stem}"
    tuned.mkdir(parents=True, exist_ok=True)
    if not model.is_file():
        plan = plan_random_model(name, file_type_named(_TYPE), model)
        execute(plan, os.cpu_count() or 1, is_overwriting=False, report=lambda _event: None)
    if tune in _TUNERS:
        of_types, of_model = _TUNERS[tune]
        if not (types / _TYPES_FILE).is_file():
            _tune(of_types, model, types, in_cpu_s=in_cpu_s)
        if not (tuned / "tune.json").is_file():
            shutil.copy(types / _TYPES_FILE, tuned)
            _tune(of_model, model, tuned, in_cpu_s=in_cpu_s)
    return model, tuned


def _tune(command: Sequence[str], model: Path, cache_dir: Path, *, in_cpu_s: bool) -> None:
    """Let the `command` measure until nothing disturbs it. Raises CalledProcessError."""
    words = [word.format(model=model, threads=int(in_cpu_s)) for word in command]
    if in_cpu_s:
        words.append("--processor-time")
    for _ in range(_MOST_TRIES):
        environment = os.environ | {"LOCALLLM_CACHE_DIR": str(cache_dir)}
        with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE) as tuner:  # it ends with its stdin
            if tuner.wait() == 0:
                return
            if tuner.returncode != DISTURBED:
                break
    raise subprocess.CalledProcessError(tuner.returncode, words)


def _names(known: Sequence[str], what: str, text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in known and not name.endswith(".gguf")]:
        raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)}; there is {', '.join(known)}")
    return chosen


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server", type=Path, metavar="LLAMA_SERVER", help="the program to compare with")
    models, works = partial(_names, list(SHAPES), "shape"), partial(_names, list(WORKS), "work")
    peers = partial(_names, [*PEER_FLAGS, *IK_FLAGS], "flags")
    parser.add_argument("--models", type=models, default=list(_SHAPES), help=f"shapes or files ({','.join(_SHAPES)})")
    parser.add_argument("--only", type=works, default=_DEFAULT_WORKS, metavar="WORK,...", help=", ".join(WORKS))
    flags = ", ".join([*PEER_FLAGS, *IK_FLAGS])
    parser.add_argument("--peers", type=peers, default=[], metavar="FLAGS,...", help=flags)
    parser.add_argument("--ik", type=Path, metavar="IK_LLAMA_SERVER", help="ik_llama.cpp's, to be measured too")
    own = "chats of `categories`: lines of JSON with `category` and `turns` (those of categories.py)"
    parser.add_argument("--samples", type=Path, metavar="FILE", help=own)
    parser.add_argument("--n-samples", type=int, default=2, metavar="N", help="chats of each category of a file (2)")
    parser.add_argument("--rounds", type=int, default=3, help="of each work, each with servers of its own (3)")
    parser.add_argument("--passes", type=int, default=1, help="how often the servers of a round do the work (1)")
    parser.add_argument("--ctx", type=int, default=16384, help="tokens of llama-server's cache, for all slots (16384)")
    parser.add_argument("--processor-time", action="store_true", help="count a server's processor time, not the wall's")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="programs that compute beside the servers (0)")
    tuning = "how ours is tuned first: as the service does it in its idle moments, by `localllm tune`, or not (idle)"
    parser.add_argument("--tune", choices=[*_TUNERS, "no"], default="idle", help=tuning)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "localllm-shapes"))
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="keep all samples there, for report.py")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of all text; drawn when not given")
    options = parser.parse_args()
    if options.processor_time and options.tune == "command":
        parser.error("--processor-time goes with --tune idle or no: the command measures by the clock")
    return options


def _save(folder: Path, measured: SideBySide) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for results in (measured.ours, *measured.peers):
        results.save(folder / f"{Path(results.model).stem}-{results.label.replace(' ', '')}.json")


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does: every server is ended on the way out
    short: list[str] = []
    for name in options.models:
        measured = _measure(options, name)
        if options.json:
            _save(options.json, measured)
        show(compared(measured), measured.ours, *measured.peers)
        short += [f"{name}: {text}" for text in missed(measured)]
    print("\n".join(short))
    sys.exit(bool(short))


if __name__ == "__main__":
    main()
