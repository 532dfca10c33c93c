"""Does a download that is killed at any moment go on from there: kill -9 at random moments, then pull again.

Each download is killed until it happens to complete; then its hash is checked and the next one begins. After every kill
the bytes that stand on the disk are held against what the next run believes of them: the difference is fetched again.
Then four processes pull one file at once. Exits with 1 where a hash is wrong, more than 1 MiB is fetched again after a
kill, or four processes fetch a file more than once. Not on Windows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import tempfile
import threading
from pathlib import Path

from quantizer.system.process import python_command
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

_NAME, _BLOCK = "m-Q4_0.gguf", 1 << 10
_MOST_BYTES = 1 << 20
_LONGEST_S = 5.0  # a run that begins anew takes about three, on a machine with nothing else to do


class Killing:
    """A hub with one file of `data`, and pulls of it into `folder`."""

    def __init__(self, hub: HubServer, data: bytes, folder: Path) -> None:
        self._data = data
        self._command = python_command("app.cli.main", "pull", "org/repo:Q4_0", "--json")
        self._environment = os.environ | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "LOCALLLM_DATA_DIR": str(folder),
            "LOCALLLM_CACHE_DIR": str(folder / "cache"),
        }
        self._target = folder / "models" / "org" / "repo" / _NAME
        self._partial = self._target.parent / ".fetching" / _NAME

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment, stdout=subprocess.PIPE)

    def killed(self, after_s: float) -> tuple[bool, int | None]:
        """Kill a pull `after_s` seconds after its start: whether that came in time, and what it believed of bytes."""
        with self.start() as process:
            timer = threading.Timer(after_s, process.kill)
            timer.start()
            believed = None
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith(b"\n") and (said := json.loads(line))["event"] == "fetching":
                    believed = int(said["n_done"])
            timer.cancel()
        return process.returncode != 0, believed

    def finished(self) -> bool:
        return self._target.exists()

    def n_standing(self) -> int:
        """How many bytes of the partial file are right, to the block."""
        if not self._partial.exists():
            return 0
        found = self._partial.read_bytes()
        blocks = ((found[at : at + _BLOCK], self._data[at : at + _BLOCK]) for at in range(0, len(self._data), _BLOCK))
        return sum(len(right) for there, right in blocks if there == right)

    def is_right(self) -> bool:
        """Whether the file in the library is; then it goes."""
        digest = hashlib.sha256(self._target.read_bytes()).digest()
        self._target.unlink()
        return digest == hashlib.sha256(self._data).digest()


def _killings(
    killing: Killing, chance: random.Random, n_kills: int, longest_s: float
) -> tuple[int, list[str], list[int]]:
    """Kill so often; how many downloads completed, what went wrong, and what each kill cost in bytes."""
    n_kills_left, n_complete, faults, lost = n_kills, 0, [], []
    while n_kills_left > 0:
        n_standing = killing.n_standing()
        was_killed, believed = killing.killed(chance.uniform(0, longest_s))
        n_kills_left -= was_killed
        if believed is not None:
            lost.append(max(0, n_standing - believed))
        if killing.finished():
            n_complete += 1
            if not killing.is_right():
                faults.append(f"{n_kills_left} kills before the end a wrong file stood in the library")
    return n_complete, faults, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as made:
        data = tiny_llama(Path(made, "tiny.gguf")).read_bytes() + chance.randbytes(options.megabytes * 1_000_000)
        with HubServer(HubRepo.of("org/repo", {_NAME: data})) as hub:
            hub.bytes_per_s = len(data) // 8
            killing = Killing(hub, data, Path(made, "killed"))
            n_complete, faults, lost = _killings(killing, chance, options.kills, longest_s=_LONGEST_S)
            n_sent = hub.n_sent()
            print(f"{options.kills} kills, {n_complete} downloads completed, {len(faults)} of them wrong")
            if lost:  # on a busy machine every kill may come before the first byte
                mean = sum(lost) / len(lost)
                print(f"fetched again by the run after: at most {max(lost):,} bytes, {mean:,.0f} on average")
            print(f"the server sent {n_sent:,} bytes for {n_complete} files of {len(data):,}, and what is left")
            hub.log.clear()
            four = Killing(hub, data, Path(made, "four"))
            processes = [four.start() for _ in range(4)]
            statuses = []
            for process in processes:
                process.communicate()
                statuses.append(process.returncode)
            is_once = statuses == [0] * 4 and hub.n_sent() == len(data) and four.is_right()
            print(f"four processes at once: ended with {statuses}, the server sent {hub.n_sent():,} bytes")
    for fault in faults:
        print(fault)
    n_refetched = sum(n_bytes > _MOST_BYTES for n_bytes in lost)
    finish(options.kills + 1, len(faults) + n_refetched + (not is_once), options.seed)


if __name__ == "__main__":
    main()
