"""Lets the Nth open, write, fsync, rename, mmap, accept, fork … of each journey fail, and looks at what comes of it.

    uv run python -m tests.battery.faults.sweep MODEL [--attempts 200] [--only JOURNEY] [--kinds write,fsync] [--seed 1]
    uv run python -m tests.battery.faults.sweep MODEL --only run --faults write:17:ENOSPC
    uv run python -m tests.battery.faults.sweep MODEL --calls 20 --only pull,quantize
    uv run python -m tests.battery.faults.sweep MODEL --pairs --attempts 100

The idea is SQLite's (https://sqlite.org/testing.html, I/O error and out-of-memory testing). A journey is done once to
count its calls; then each attempt lets one fail, all from one on, or a pair, with an error that the call may have. Each
piece of code that touches a file of ours has its turn before any second call of it has; `--attempts 0` tries all of
them, with each error, once and lasting; `--calls` every single call once. After each fault the answer must be there, or
one error with a remedy and an exit status; no traceback, no process, no partial file and no long log may be left; and
the same journey must succeed without a fault, with nothing lost that is to last. A fault of a cache must never end one.
Linux, with a C compiler.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import psutil

from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.battery.faults.forks import Forks
from tests.battery.faults.injector import ERRORS, Call, Fault, Injector, is_possible
from tests.battery.faults.journeys import JOURNEYS, Ended, Journey, World
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["Sweep", "drawn_plans", "each_call", "every_plan", "pairs"]

_GONE_WITHIN_S = 20.0
_TOLD_EVERY = 10
_MAX_PRINTED_BYTES, _MAX_LOG_BYTES = 64 << 10, 256 << 10
_TRACES = ("Traceback (most recent call last)", "Exception ignored", "This is a bug", "has a bug", "core dumped")


class Sweep:
    """Attempts in `world`, whose processes run with the faults of `injector`."""

    def __init__(self, world: World, injector: Injector) -> None:
        self._world, self._injector = world, injector
        self._expected: dict[str, dict[str, str]] = {}
        self.calls: dict[str, list[Call]] = {}

    def count(self, journey: Journey) -> list[Call]:
        """Do a journey undisturbed, twice, and return the calls of the first time. Ends the program where it fails."""
        self._world.reset(is_new=journey.is_new)
        self._injector.begin((), logs_all=True)
        first = journey.do(self._world, self._injector.environment)
        self.calls[journey.name] = self._injector.end()
        left = self._left()
        again = journey.do(self._world, {})
        for ended in (first, again):
            if ended.lacks or (ended.status and ended is first):
                raise SystemExit(f"Undisturbed, {journey.name} ended with {ended}")
        if left:
            raise SystemExit(f"Undisturbed, {journey.name} left {left}")
        self._expected[journey.name] = {**self._world.durable(), "status": str(again.status)}
        return self.calls[journey.name]

    def attempt(self, journey: Journey, faults: Sequence[Fault]) -> tuple[list[Call], list[str]]:
        """Do a journey with `faults`; return the calls that failed, and what is wrong."""
        self._world.reset(is_new=journey.is_new)
        self._injector.begin(faults)
        ended = journey.do(self._world, self._injector.environment)
        wrong = list(self._wrong_end(ended))
        wrong += self._left()
        struck = self._injector.end()
        lasts = any(fault.lasts and fault.kind in ("unlink", "open") for fault in faults)
        wrong += [] if lasts else self._partial(struck)
        only_caches = bool(struck) and all(call.path.startswith(str(self._world.cache)) for call in struck)
        if only_caches and not journey.of_caches and (ended.status or ended.lacks):
            wrong.append(f"the fault of a cache ended it: {_end_of(ended.errors)}")
        wrong += self._log_faults()
        again = journey.do(self._world, {})
        expected = self._expected[journey.name]
        if again.lacks or str(again.status) not in ("0", expected["status"]):  # what is done may not be done again
            wrong.append(f"afterwards it ends with {again.status}: {again.lacks} {_end_of(again.errors)}")
        wrong += [f"afterwards: {it}" for it in self._left()]
        found = self._world.durable()
        wrong += [
            f"afterwards {name} is {found.get(name)}, not {value}"
            for name, value in expected.items()
            if name != "status" and found.get(name) != value
        ]
        wrong += [f"afterwards {it}" for it in self._partial(struck) if not it.startswith("tmp/")]
        return struck, wrong

    def _wrong_end(self, ended: Ended) -> Iterator[str]:
        printed = ended.output + ended.errors
        yield from (f"it printed {words!r}:\n{_around(printed, words)}" for words in _TRACES if words in printed)
        if len(printed) > _MAX_PRINTED_BYTES and "\x1b" not in printed:
            yield f"it printed {len(printed)} characters"
        if ended.lacks:
            yield f"{ended.lacks}; it printed: {_end_of(printed)}"
        elif ended.status < 0:
            yield f"a signal ended it: {ended.status}: {_end_of(printed)}"
        elif ended.status:
            lines = [line for line in ended.errors.splitlines() if line.startswith("Error: ")]
            if len(lines) != 1:
                yield f"{len(lines)} errors were printed with the status {ended.status}: {_end_of(printed)}"
            elif not re.search(r"[.!?`)] +[A-Z`]", lines[0]):  # a second sentence
                yield f"an error without a remedy: {lines[0]}"

    def _left(self) -> list[str]:
        """Return the processes that work for the world long after the journey, and end them."""
        until_s = time.monotonic() + _GONE_WITHIN_S
        while (left := self._processes()) and time.monotonic() < until_s:
            time.sleep(0.05)
        wrong = [f"the process {' '.join(_command(each))[-120:]} is left" for each in left]
        for each in left:
            each.kill()
        psutil.wait_procs(left, 10)
        return wrong

    def _processes(self) -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if _data_dir(each) == str(self._world.data)]

    def _partial(self, struck: Sequence[Call] = ()) -> list[str]:
        """Return the partial and temporary files that are left, but those whose own removal or file system failed."""
        places = [path for path in self._world.root.rglob("*") if path.suffix in (".tmp", ".partial")]
        places += (self._world.root / "tmp").iterdir()
        failed = [call.path for call in struck]
        left = [path for path in places if not any(name.startswith(str(path)) for name in failed)]
        return [f"{path.relative_to(self._world.root)} is left" for path in left]

    def _log_faults(self) -> list[str]:
        wrong = [
            f"{path.name}:\n{path.read_text('utf-8', 'replace')[-1500:]}" for path in self._world.cache.glob("crash-*")
        ]
        log = self._world.cache / "service.log"
        if log.is_file():
            text = log.read_text("utf-8", "replace")
            wrong += [f"the log has {words!r}:\n{_around(text, words)}" for words in _TRACES if words in text]
            wrong += [f"the log has {len(text)} characters"] if len(text) > _MAX_LOG_BYTES else []
        return wrong


def _around(text: str, words: str) -> str:
    """Return the lines of a traceback that say where it is in our code, and its error."""
    lines = text[text.index(words) :].splitlines()
    end = next((n for n, line in enumerate(lines[1:], 1) if line and not line.startswith(" ")), len(lines))
    ours = [line for line in lines[:end] if re.search(r'File ".*/(?:app|tui|quantizer|offload)/', line)]
    frames = [re.sub(r'.*/(\w+/[\w/]+\.py)", line (\d+), in (\w+)', r"\1:\2 \3", line) for line in ours[-6:]]
    return "\n".join(f"      {line}" for line in (*frames, *lines[end : end + 2]))


def _end_of(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-4:])[-600:]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _data_dir(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get("LOCALLLM_DATA_DIR", "")
    except psutil.Error:
        return ""


def every_plan(calls: Sequence[Call], kinds: Sequence[str], chance: random.Random) -> Iterator[tuple[Fault, ...]]:
    """Yield each place of `calls` with each error once, at any call of it; then so that all from there on fail."""
    choices = _choices(calls, kinds, chance)
    for found, error in choices:
        yield (_fault(chance.choice(found), error),)
    for found, error in choices:
        if error != errno.EINTR:
            yield (_fault(found[0], error, lasts=True),)


def each_call(
    calls: Sequence[Call], kinds: Sequence[str], most_of_a_place: int, chance: random.Random
) -> Iterator[tuple[Fault, ...]]:
    """Yield each of `calls` with one error, those of its kind in turn; of a place with many as many as are wanted, its
    first and its last among them."""
    numbers: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        if call.kind in kinds:
            numbers.setdefault(call.place, []).append(call)
    turn = dict.fromkeys(kinds, chance.randrange(100))
    for found in numbers.values():
        step = max(1, len(found) - 1) / max(1, most_of_a_place - 1)
        wanted = found if len(found) <= most_of_a_place else [found[round(n * step)] for n in range(most_of_a_place)]
        for call in wanted:
            turn[call.kind] += 1
            yield (_fault(call, ERRORS[call.kind][turn[call.kind] % len(ERRORS[call.kind])]),)


def pairs(calls: Sequence[Call], kinds: Sequence[str], chance: random.Random) -> Iterator[tuple[Fault, ...]]:
    """Yield pairs of faults without end, each at a call that its place has."""
    choices = _choices(calls, kinds, chance)
    while choices:
        (first, error), (second, other) = chance.choice(choices), chance.choice(choices)
        yield (_fault(chance.choice(first), error), _fault(chance.choice(second), other))


def drawn_plans(calls: Sequence[Call], kinds: Sequence[str], chance: random.Random) -> Iterator[tuple[Fault, ...]]:
    """Yield faults without end: of five three strike once, one lasts, one comes in a pair; no place has its second turn
    before each had its first."""
    choices = _choices(calls, kinds, chance)
    for number, (found, error) in enumerate(itertools.cycle(choices)):
        call = chance.choice(found)
        if number % 5 == 3 and error != errno.EINTR:
            yield (_fault(call, error, lasts=True),)
        elif number % 5 == 4:
            other, other_error = chance.choice(choices)
            yield (_fault(call, error), _fault(chance.choice(other), other_error))
        else:
            yield (_fault(call, error),)


def _choices(calls: Sequence[Call], kinds: Sequence[str], chance: random.Random) -> list[tuple[list[Call], int]]:
    places: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        if call.kind in kinds:
            places.setdefault(call.place, []).append(call)
    choices = [(found, error) for (kind, *_), found in places.items() for error in ERRORS[kind]]
    chance.shuffle(choices)
    return choices


def _fault(call: Call, error: int, *, lasts: bool = False) -> Fault:
    return Fault(call.kind, call.number, error, lasts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--attempts", type=int, default=200, help="0: each place with each error, once and for good")
    parser.add_argument("--calls", type=int, default=0, help="each call once, at most so many of one place and file")
    parser.add_argument("--pairs", action="store_true", help="--attempts of two faults each")
    parser.add_argument("--only", default="", help="parts of the names of journeys, with commas")
    parser.add_argument("--kinds", default=",".join(ERRORS), help="of calls, with commas (all)")
    parser.add_argument("--faults", default="", help="these only, such as write:17:ENOSPC,create:3+:EROFS")
    parser.add_argument("--list", action="store_true", help="the calls of each journey, and end")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if why := is_possible():
        print(f"left out: {why}")
        finish(0, 0, options.seed)
    chance = random.Random(options.seed)
    chosen = [it for it in JOURNEYS if any(word in it.name for word in options.only.split(","))]
    tried, failed = Counter[str](), Counter[str]()
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hub = stack.enter_context(HubServer(_repo(made)))
        injector = Injector(made, made / "world")
        forks = stack.enter_context(closing(Forks(made, injector.environment)))
        world = World(made, options.model.absolute(), hub.url, forks)
        sweep = Sweep(world, injector)
        if options.list:
            for journey in chosen:
                for call in sweep.count(journey):
                    print(journey.name, call.kind, call.number, call.process, call.function, call.path, sep="\t")
            return
        for journey, faults in _tries(sweep, chosen, chance, options):
            struck, wrong = sweep.attempt(journey, faults)
            tried[journey.name] += 1
            if tried.total() % _TOLD_EVERY == 0:
                print(f"{tried.total()} tried, {failed.total()} failed", flush=True)
            if wrong:
                failed[journey.name] += 1
                what = ",".join(map(str, faults))
                print(f"--only '{journey.name}' --faults {what}", flush=True)
                for call in struck[:4]:
                    print(f"    {call.function} {call.path.removeprefix(str(world.root))} in {call.process}")
                print("".join(f"  {it}\n" for it in wrong), flush=True)
    print(", ".join(f"{key} {count} ({failed[key]})" for key, count in tried.items()))
    finish(tried.total(), failed.total(), options.seed)


def _tries(
    sweep: Sweep, journeys: Sequence[Journey], chance: random.Random, options: argparse.Namespace
) -> Iterator[tuple[Journey, tuple[Fault, ...]]]:
    """Yield attempts: of journeys in turn, or each of a journey before those of the next where all are wanted."""
    kinds = options.kinds.split(",")
    if options.faults:
        for journey in journeys:
            sweep.count(journey)
            yield journey, tuple(map(Fault.parse, options.faults.split(",")))
    elif options.calls or not options.attempts:
        for journey in journeys:
            calls = sweep.count(journey)
            every = (
                each_call(calls, kinds, options.calls, chance) if options.calls else every_plan(calls, kinds, chance)
            )
            yield from ((journey, faults) for faults in every)
    else:
        # What is not counted yet is counted when its turn comes: a small batch has no time for all.
        order = chance.sample(journeys, len(journeys))
        open_plans: dict[str, Iterator[tuple[Fault, ...]]] = {}
        for journey, _ in zip(itertools.cycle(order), range(options.attempts), strict=False):
            if journey.name not in open_plans:
                plans = pairs if options.pairs else drawn_plans
                open_plans[journey.name] = plans(sweep.count(journey), kinds, chance)
            if (faults := next(open_plans[journey.name], None)) is not None:
                yield journey, faults


def _repo(folder: Path) -> HubRepo:
    return HubRepo.of("org/repo", {"m-Q4_0.gguf": tiny_llama(folder / "tiny.gguf").read_bytes()})


if __name__ == "__main__":
    main()
