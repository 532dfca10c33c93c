"""Does `pull` end in the right bytes or in none, whatever the link and the hub do: each fault many times, at random.

A fault strikes some requests or all, anywhere in a file, at the storage, the hub's redirect or its listing. After each
the model is in the library whole or not at all; then the fault is over, and another pull goes on from what came. Exits
with 1 where a trial ends otherwise, where going on fetches more than 1 MiB again, or the token reaches a stranger.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Discarded, Event, Fetching
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess
from app.library.hub.reference import RepoReference
from app.library.hub.repository import Repository
from app.library.hub.selection import QuantChoice
from app.library.local.index import Index
from app.library.local.resolve import available
from app.library.pulling.puller import Puller, PullPlan, plan_model_pull
from app.settings.settings import Settings
from quantizer.system.errors import UserError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_faults import FAULTS
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import CERTIFICATE, HubServer
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

_NAME, _TOKEN, _BLOCK = "m-Q4_0.gguf", "hf_secret", 4096
_REFETCHED_BYTES = 1 << 20
_STAGES = {"api": ("429", "5xx", "stall", "reset", "truncation", "gzip", "tls error"), "resolve": ("429", "5xx")}
_FOREVER = 10**6


@dataclass
class Trial:
    """One model at a hub that is about to fail in the way `kind`; what it `said` and how the pulls `ended`."""

    kind: str
    chance: random.Random
    settings: Settings
    contents: list[bytes]
    said: list[Event] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    n_refetched: int = 0

    async def fault(self) -> str:
        """Do it; what is wrong then, or nothing."""
        repo = HubRepo.of("org/repo", {_NAME: self.contents[0]}, "manual")
        with HubServer(repo, is_tls=self.kind == "tls error") as hub:
            hub.readers.add(_TOKEN)
            self._prepare(hub)
            if (wrong := await self._pull(hub)) is not None:
                return wrong
            hub.injections.clear()
            n_there = self._n_there() if not any(isinstance(event, Discarded) for event in self.said) else 0
            if (wrong := await self._pull(hub)) is not None or self.ended[-1] != "right":
                return wrong or f"the second pull ended with {self.ended[-1]}"
            begun = [event.n_done for event in self.said if isinstance(event, Fetching)]
            self.n_refetched = max(0, n_there - begun[-1]) if self.ended[0] != "right" and begun else 0
            if self.n_refetched > _REFETCHED_BYTES:
                return f"{self.n_refetched:,} bytes were fetched again"
            if any(_TOKEN in str(request.headers) for request in hub.log if request.origin != "hub"):
                return "the token went to a stranger"
        return ""

    def _prepare(self, hub: HubServer) -> None:
        stages = ["content", *(stage for stage, kinds in _STAGES.items() if self.kind in kinds)]
        stage = self.chance.choice([*stages, "handshake"] if self.kind == "tls error" else stages)
        times = self.chance.choice([1, 2, 3, _FOREVER])
        hub.inject(self.kind, times=times, skip=self.chance.randrange(3), at=self.chance.random(), stage=stage)
        if self.kind == "etag change" and self.chance.random() < 0.5:
            self.contents.append(self.contents[0][:-9] + self.chance.randbytes(self.chance.randrange(1, 99)))

    async def _pull(self, hub: HubServer) -> str | None:
        """Pull once; what is wrong then."""
        access, options = HubAccess(hub.url, _TOKEN), DownloadOptions(retry=IMPATIENT)
        with Index(self.settings.cache_dir) as index:
            try:
                await Puller(access, index, options, self._hearing(hub)).pull(self._order)
            except UserError as error:
                self.ended.append(type(error).__name__)
            else:
                self.ended.append("right")
        return self._wrong()

    async def _order(self, connection: HttpSession) -> PullPlan:
        return await plan_model_pull(connection, RepoReference("org/repo"), self.settings.models_dir, _first)

    def _hearing(self, hub: HubServer) -> Callable[[Event], None]:
        def hear(event: Event) -> None:
            self.said.append(event)
            held = hub.repos["org/repo"]
            if event.kind == "progress" and held.files[_NAME].data != self.contents[-1]:
                held.put(_NAME, self.contents[-1])  # in the middle of the download

        return hear

    def _wrong(self) -> str | None:
        listed = [ref.path for ref in available(self.settings) if ref.repo]
        if not listed:
            return None if self.ended[-1] != "right" else "it is said to be there and is not"
        if listed[0].read_bytes() not in self.contents:
            return "what is listed is corrupt"
        return None

    def _n_there(self) -> int:
        """How many bytes of the partial file are right, to the block."""
        path = self.settings.models_dir / "org" / "repo" / ".fetching" / _NAME
        if not path.exists():
            return 0
        found, data = path.read_bytes(), self.contents[-1]
        blocks = range(0, len(data), _BLOCK)
        return sum(len(data[at : at + _BLOCK]) for at in blocks if found[at : at + _BLOCK] == data[at : at + _BLOCK])


def _first(repository: Repository) -> QuantChoice:
    return QuantChoice(repository.models[0], "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="of each fault")
    parser.add_argument("--only", help="one fault")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["SSL_CERT_FILE"] = str(CERTIFICATE)
    chance = random.Random(options.seed)
    n_faulty, kinds = 0, [options.only] if options.only else FAULTS
    with tempfile.TemporaryDirectory() as made:
        model = tiny_llama(Path(made, "tiny.gguf")).read_bytes()
        for kind in kinds:
            ends, faults, most = Counter[str](), [], 0
            for index in range(options.trials):
                folder = Path(made, kind.replace(" ", "-"), str(index))
                settings = Settings(data_dir=folder, cache_dir=folder / "cache")
                contents = [model + chance.randbytes(chance.randrange(12 << 20))]
                trial = Trial(kind, chance, settings, contents)
                if fault := asyncio.run(trial.fault()):
                    faults.append(f"{index}: {fault}")
                ends[trial.ended[0]] += 1
                most = max(most, trial.n_refetched)
            told = ", ".join(f"{end} {count}" for end, count in ends.items())
            n_good = options.trials - len(faults)
            print(f"{kind}: {n_good} of {options.trials} ({told}; at most {most:,} bytes again)", flush=True)
            for fault in faults:
                print(f"  {fault}")
            n_faulty += len(faults)
    finish(len(kinds) * options.trials, n_faulty, options.seed)


if __name__ == "__main__":
    main()
