"""How fast `localllm pull` is over loopback, beside curl of the same file with sha256sum after it; and its memory.

Both in turns, so that what else the machine does meets both; medians count. Exits with 1 where pull has less than 0.8
of the other's speed, or more than 120 MB. The file is of any length; it must be a model, or the gate refuses it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quantizer.system.process import python_command

_SERVER = Path(__file__).parents[2] / "app" / "library" / "hub_server.py"
_LEAST_SHARE, _MOST_BYTES = 0.8, 120_000_000


def _by_curl(url: str, folder: Path) -> float:
    begun_s = time.monotonic()
    subprocess.run(["curl", "-sfL", "-o", "model.gguf", url], cwd=folder, check=True)
    subprocess.run(["sha256sum", "model.gguf"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun_s


def _by_pull(url: str, folder: Path) -> tuple[float, int]:
    """Seconds, and the most bytes that were resident."""
    own = {"LOCALLLM_DATA_DIR": str(folder), "LOCALLLM_CACHE_DIR": str(folder / "cache"), "HF_HOME": str(folder)}
    begun_s = time.monotonic()
    command = python_command("app.cli.main", "pull", url, "--json")
    process = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit("pull failed")
    return time.monotonic() - begun_s, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        repo, work = Path(made, "hub", "org", "repo"), Path(made, "work")
        repo.mkdir(parents=True)
        (repo / "m.gguf").symlink_to(options.model.resolve())
        command = [sys.executable, str(_SERVER), str(repo.parents[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip() + "/org/repo/resolve/main/m.gguf"
            curl_s, pull_s, peaks = [], [], []
            for _ in range(options.runs):
                work.mkdir()
                curl_s.append(_by_curl(url, work))
                shutil.rmtree(work)
                work.mkdir()
                seconds, n_bytes = _by_pull(url, work)
                pull_s.append(seconds)
                peaks.append(n_bytes)
                shutil.rmtree(work)
                print(f"curl {curl_s[-1]:.2f} s, pull {pull_s[-1]:.2f} s, {n_bytes / 1e6:.1f} MB", flush=True)
            server.kill()
    share = statistics.median(curl_s) / statistics.median(pull_s)
    print(f"pull has {share:.2f} of the speed of curl and sha256sum; at most {max(peaks) / 1e6:.1f} MB were resident")
    sys.exit(share < _LEAST_SHARE or max(peaks) > _MOST_BYTES)


if __name__ == "__main__":
    main()
