"""What it gains to convert a checkpoint while it comes: `pull --quantize` beside fetching it all and converting then.

A random checkpoint in shards comes from the test hub, each connection of which gives so many bytes a second. Prints the
seconds of both ways, and the most that lay on the disk (polled) beside the peak that was said; then kills the pull at
random moments until it is through, and holds the bytes against the others. Exits with 1 where the disk took more than
was said, the bytes differ, or anything but the model is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from quantizer.system.process import python_command
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.battery.tally import finish
from tests.quantizer.checkpoints import TinyLlama

_POLL_S = 0.02


class Library:
    """A data folder of its own, into which the hub's checkpoint is pulled."""

    def __init__(self, hub: HubServer, folder: Path, file_type: str) -> None:
        places = {"LOCALLLM_DATA_DIR": str(folder / "data"), "LOCALLLM_CACHE_DIR": str(folder / "cache")}
        self._environment = os.environ | places | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf")}
        self.data = folder / "data"
        self.output = self.data / "models" / "org" / "check" / f"check-{file_type}.gguf"
        self._pull = python_command("app.cli.main", "pull", "org/check", "--quantize", file_type, "--json")
        self.most_bytes = 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._pull, *arguments], env=self._environment, stdout=subprocess.PIPE, text=True)

    def pulled(self, *arguments: str) -> tuple[float, float, int]:
        """Pull to the end: the seconds, those until the last byte came, and the peak of disk that was said."""
        begun_s, over = time.monotonic(), threading.Event()
        watching = threading.Thread(target=self._watch, args=[over])
        watching.start()
        with self.start(*arguments) as process:
            assert process.stdout is not None
            said = [(time.monotonic() - begun_s, json.loads(line)) for line in process.stdout]
        over.set()
        watching.join()
        assert process.returncode == 0
        came_s = max(at_s for at_s, event in said if event["event"] == "progress")
        return time.monotonic() - begun_s, came_s, max(event.get("peak_disk_bytes", 0) for _, event in said)

    def killed(self, after_s: float) -> None:
        with self.start("--remove-checkpoint") as process:
            timer = threading.Timer(after_s, process.kill)
            timer.start()
            process.communicate()
            timer.cancel()

    def left(self) -> list[str]:
        """The files that lie there beside the model."""
        return [str(path) for path in self.data.rglob("*") if path.is_file() and path != self.output]

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_POLL_S):
            self.most_bytes = max(self.most_bytes, sum(map(_disk_bytes, self.data.rglob("*"))))


def _disk_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512 if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _afterwards(checkpoint: Path, file_type: str, folder: Path) -> float:
    """Seconds to convert a checkpoint that lies there."""
    begun_s = time.monotonic()
    command = python_command("app.cli.main", "quantize", str(checkpoint), file_type, "-o", str(folder / "after.gguf"))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--megabytes-per-s", type=float, default=10.0, help="of each of four connections")
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, n_kills = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shape = TinyLlama(
            n_layers=options.layers,
            n_embd=options.width,
            n_ff=3 * options.width,
            n_shards=options.shards,
            is_in_order=True,
        )
        checkpoint = shape.write(folder / "check")
        n_bytes = sum(path.stat().st_size for path in checkpoint.iterdir())
        with HubServer(HubRepo.of("org/check", {path.name: path for path in checkpoint.iterdir()})) as hub:
            hub.bytes_per_s = int(options.megabytes_per_s * 1e6)
            streamed, kept, killed = (Library(hub, folder / name, options.type) for name in ("go", "stay", "kill"))
            stream_s, _, said_bytes = streamed.pulled("--remove-checkpoint")
            keep_s, came_s, kept_bytes = kept.pulled()
            after_s = _afterwards(checkpoint, options.type, folder)
            model_bytes = streamed.output.stat().st_size
            print(f"checkpoint {n_bytes / 1e6:.0f} MB in {options.shards} shards, model {model_bytes / 1e6:.0f} MB")
            print(f"pulled and converted at once: {stream_s:.1f} s where files go, {keep_s:.1f} s where they stay")
            print(f"one after the other: {came_s:.1f} s until all came, and {after_s:.1f} s to convert it then")
            for name, library, peak in (("go", streamed, said_bytes), ("stay", kept, kept_bytes)):
                print(f"disk, files that {name}: said {peak / 1e6:.0f} MB, took {library.most_bytes / 1e6:.0f} MB")
            while n_kills < options.kills and not killed.output.exists():
                killed.killed(chance.uniform(0.5, 3.0))
                n_kills += 1
            if not killed.output.exists() or killed.left():
                killed.pulled("--remove-checkpoint")
            outputs = {library.output.read_bytes() for library in (streamed, kept, killed)}
            is_same = outputs == {(folder / "after.gguf").read_bytes()}
            left = [*streamed.left(), *killed.left()]
            print(
                f"killed until through: the bytes are {'the same' if is_same else 'others'}, left: {left or 'nothing'}"
            )
    small = 2_000_000  # the tokenizer, heads and journals
    n_failed = (not is_same) + bool(left) + (streamed.most_bytes > said_bytes + small)
    finish(n_kills + 1, n_failed, options.seed)


if __name__ == "__main__":
    main()
