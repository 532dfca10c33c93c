"""Compare a mixture-of-experts model larger than its memory with and without experts that are read ahead.

    sudo uv run python tests/bench/engine/expert_read_ahead.py MODEL.gguf --memory 2500 --tokens 16

The memory of each run, page cache included, is limited to so many MiB by a control group that is made for it, under the
folder that `--cgroup` names (v1's memory controller, or v2). How far the system reads around a page decides most:
/sys/block/DEVICE/queue/read_ahead_kb. Tokens are random, so are their experts, unless the model has others in mind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import ExpertReadAhead, LlamaModel
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import shard_paths

_LIMITS = ("memory.limit_in_bytes", "memory.max")  # of v1 and v2
_N_FIRST = 4  # tokens before the clock starts
_N_ROUNDS = 3


def decode(path: Path, n_tokens: int, n_threads: int, *, reads_ahead: bool) -> float:
    """Return the tokens a second of an answer of random tokens."""
    paths = shard_paths(read_header(path))
    for each in paths:
        with each.open("rb") as file:  # what another run left in the page cache counts nowhere
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    setting = RuntimeSettings(n_threads=n_threads, flash_attention=False, extra_buffers=False)
    with ExitStack() as owned:
        observer = owned.enter_context(closing(ExpertReadAhead(paths))) if reads_ahead else None
        model = owned.enter_context(closing(LlamaModel(path, ON_HOST, False, lambda _: True, observer=observer)))
        backend = owned.enter_context(closing(model.context(EngineConfig(n_ctx=512, n_sequences=1), setting)))
        drawn = np.random.default_rng(3).integers(0, backend.facts.n_vocab, _N_FIRST + n_tokens).tolist()
        for position, token in enumerate(drawn):
            if position == _N_FIRST:
                start_s = time.monotonic()
            backend.decode([Chunk(0, position, [token], 1)])
        return n_tokens / (time.monotonic() - start_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--memory", type=int, required=True, metavar="MIB")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cgroup", type=Path, default=Path("/sys/fs/cgroup/memory"))
    parser.add_argument("--run", choices=["ahead", "plain"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    group: Path = options.cgroup / "expert-read-ahead"
    if options.run:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        speed = decode(options.model, options.tokens, options.threads, reads_ahead=options.run == "ahead")
        print(f"{options.run:6} {speed:6.2f} tok/s", flush=True)
        return
    group.mkdir(exist_ok=True)
    limit = next(group / name for name in _LIMITS if (group / name).exists())
    limit.write_text(str(options.memory << 20))
    for _ in range(_N_ROUNDS):
        for kind in ("plain", "ahead"):
            subprocess.run([sys.executable, *sys.argv, "--run", kind], check=True)
    group.rmdir()


if __name__ == "__main__":
    main()
