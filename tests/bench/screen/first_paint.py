"""CPU seconds of the terminal app's start, of this checkout or of this one and another in turns.

    python -m tests.bench.screen.first_paint [OTHER_CHECKOUT] [--runs 20]

Counted are user and system time of the app's process, which hold beside other programs: until the prompt is on the
terminal, and until the app has done nothing for half a second (then the open chat and the list of chats are there).
With a sidebar (140×40) and without (100×40), over 60 chats that each checkout stores itself: an older one refuses
tables of a newer one, and has no chat to show then. The app runs with this Python and compiled modules.
Ends with 1 where this checkout takes more than `LIMITS_S` longer than the other one. Linux.
"""

from __future__ import annotations

import argparse
import codecs
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.screen.paced_engine import PacedEngine
from tests.tui.at_terminal import start_at_terminal

LIMITS_S = {(140, 40): 0.08, (100, 40): 0.0}
_PROMPT = "sk something"  # without the letter below the cursor
_N_CHATS = 60
# Run in a checkout's folder with that of its data: print the last message of the chat that the app opens.
_STORE = f"""
import sys
from pathlib import Path
from app.chat.store.chat_store import ChatStore
from tests.bench.screen.search_chats import fill
with ChatStore(Path(sys.argv[1])) as store:
    fill(store, {_N_CHATS}, 4)
    print(store.transcripts.read(store.chats.latest().id).messages[-1].content)
"""
_IDLE_S, _IDLE_CPU_S = 0.5, 0.02
_PATIENCE_S = 60.0
_CTRL_Q = b"\x11"


def stored(checkout: Path, data: Path) -> str:
    """Let a checkout store its chats; return the first words of the message that its app shows last."""
    data.mkdir()
    command = [sys.executable, "-c", _STORE, str(data)]
    message = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return " ".join(message.split()[:3])


def started_s(checkout: Path, url: str, data: Path, last_words: str, size: tuple[int, int]) -> dict[str, float]:
    """Start the app, wait until it rests with `last_words` on the terminal, quit it; return the CPU seconds at each
    stage."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"LOCALLLM_DATA_DIR": str(data), "LOCALLLM_CACHE_DIR": str(data / "cache")}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = [sys.executable, "-m", "tui", "--connect", url, "-m", "paced"]
    process, ours = start_at_terminal(command, environment, size, folder=checkout)
    clock = (~process.pid << 3) | 2  # Linux's clock of the CPU time of another process
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    taken, seen = {}, ""
    rest_cpu_s = rest_from_s = 0.0
    deadline_s = time.perf_counter() + _PATIENCE_S
    try:
        while "rest" not in taken:
            if time.perf_counter() > deadline_s:
                raise SystemExit(f"the app never came to rest; its last output: {seen[-2000:]!r}")
            if select.select([ours], [], [], 0.001)[0]:
                seen += decoder.decode(os.read(ours, 1 << 16))
            cpu_s = time.clock_gettime(clock)
            if "prompt" not in taken and _PROMPT in seen:
                taken["prompt"] = cpu_s
            if cpu_s - rest_cpu_s > _IDLE_CPU_S:
                rest_cpu_s, rest_from_s = cpu_s, time.perf_counter()
            elif (
                "prompt" in taken
                and "ready" in seen
                and last_words in seen
                and time.perf_counter() - rest_from_s > _IDLE_S
            ):
                taken["rest"] = cpu_s
        os.write(ours, _CTRL_Q)
        while select.select([ours], [], [], _PATIENCE_S)[0]:
            try:
                os.read(ours, 1 << 16)
            except OSError:  # the app has left its terminal
                break
        process.wait(_PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("--runs", type=int, default=20, metavar="N")
    options = parser.parse_args()
    checkouts = [Path.cwd(), *([options.other.resolve()] if options.other else [])]
    has_missed = False
    with tempfile.TemporaryDirectory() as folder, PacedEngine().serving() as engine:
        places = [Path(folder) / str(index) for index, _ in enumerate(checkouts)]
        last_words = [stored(checkout, data) for checkout, data in zip(checkouts, places, strict=True)]
        for size, limit_s in LIMITS_S.items():
            runs: list[list[dict[str, float]]] = [[] for _ in checkouts]
            for number in range(-1, options.runs):  # the first one compiles
                for index, checkout in enumerate(checkouts):
                    taken = started_s(checkout, engine.url, places[index], last_words[index], size)
                    if number >= 0:
                        runs[index].append(taken)
            for stage in ("prompt", "rest"):
                medians_s = [statistics.median(each[stage] for each in taken) for taken in runs]
                line = f"{size[0]}×{size[1]}  {stage:<8} " + "  ".join(f"{each:.3f} s" for each in medians_s)
                if len(runs) == 2:
                    more_s = [here[stage] - there[stage] for here, there in zip(*runs, strict=True)]
                    quartiles_s = statistics.quantiles(more_s, n=4)
                    line += f"  paired {quartiles_s[1]:+.3f} s ({quartiles_s[0]:+.3f} to {quartiles_s[2]:+.3f})"
                    if quartiles_s[1] > limit_s:
                        has_missed, line = True, f"{line}  above the limit of {limit_s:+.2f} s"
                print(line, flush=True)
    sys.exit(has_missed)


if __name__ == "__main__":
    main()
