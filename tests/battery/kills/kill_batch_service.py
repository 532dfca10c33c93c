"""Kills a service, or the process of its job, at random moments while it answers a batch of /v1/batches: the next
one goes on by itself.

    uv run python -m tests.battery.kills.kill_batch_service [--kills 100] [--seed 1]

Each kill of the service comes after up to three of its job. Told: the answers that each kill left, and how long the
processes of a killed service lived on. Fails where an answer is lost or there twice, where a batch does not go on, or
where a process is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from tests.battery.kills.kill_jobs import service
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

PER_KILL = 200  # requests
_PATIENCE_S = 120.0
_LONGEST_S = 8.0  # that a process outlives its service
PATH = "/v1/completions"


async def begun(http: httpx.AsyncClient, n_requests: int) -> str:
    """Return the id of a new batch."""
    body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
    lines = [json.dumps({"custom_id": str(number), "url": PATH, "body": body}) for number in range(n_requests)]
    files = {"file": ("in.jsonl", "\n".join(lines).encode())}
    stored = (await http.post("/v1/files", data={"purpose": "batch"}, files=files)).raise_for_status().json()
    asked = {"input_file_id": stored["id"], "endpoint": PATH, "completion_window": "336h"}
    return str((await http.post("/v1/batches", json=asked)).raise_for_status().json()["id"])


def answers(data: bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in data[: data.rfind(b"\n") + 1].splitlines()]


async def has_answers(path: Path, n_wanted: int) -> bool:
    """Wait until there are as many answers; return whether there are."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while (await asyncio.to_thread(_n_answers, path)) < n_wanted:
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.01)
    return True


def _n_answers(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_job(family: list[psutil.Process]) -> int:
    """Kill the process of the job, and return how many there were: it may be about to start."""
    n_killed = 0
    for process in family:
        with suppress(psutil.NoSuchProcess):
            if "app.cli.job_process" in process.cmdline():
                process.kill()
                process.wait(_LONGEST_S)
                n_killed += 1
    return n_killed


async def kills(root: Path, environment: dict[str, str], n_kills: int, seed: int) -> list[str]:
    chance, faults, known = random.Random(seed), list[str](), set[str]()
    batch_id, n_jobs = "", 0
    for number in range(n_kills + 1):
        async with (
            service(environment) as running,
            httpx.AsyncClient(base_url=running.client.base_url, trust_env=False, timeout=60) as http,
        ):
            batch_id = batch_id or await begun(http, PER_KILL * n_kills)
            path = root / "data" / "batches" / f"{batch_id}.jsonl"
            for n_left in range(0 if number == n_kills else chance.randrange(4), -1, -1):
                if not await has_answers(path, len(known) + chance.randrange(1, 10)):
                    return [*faults, f"it does not go on: {(await http.get(f'/v1/batches/{batch_id}')).text}"]
                if n_left:
                    await asyncio.sleep(chance.uniform(0, 0.05))
                    n_jobs += kill_job(running.family())
                    found = answers(path.read_bytes())
                    if len(set(found)) < len(found) or not known <= set(found):
                        faults.append(f"kill of job {n_jobs}: an answer is lost, or there twice")
                    known = set(found)
            if number == n_kills:
                while (batch := (await http.get(f"/v1/batches/{batch_id}")).json())["completed_at"] is None:  # noqa: ASYNC110 - polled as clients do
                    await asyncio.sleep(0.1)
                content = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).content
                ended = answers(content)
                print(f"at the end, {n_jobs} jobs were killed: {len(ended)} answers, {batch['request_counts']}")
                is_whole = sorted(ended) == sorted(map(str, range(PER_KILL * n_kills)))
                return faults if is_whole else [*faults, "the output has not each answer once"]
            await asyncio.sleep(chance.uniform(0, 0.05))
            family = running.family()
            running.process.kill()
            killed_s = time.monotonic()
            left = psutil.wait_procs(family, timeout=_LONGEST_S)[1]
            found = answers(path.read_bytes())
            print(
                f"kill {number}: {len(found)} answers, the last process ended after {time.monotonic() - killed_s:.2f} s"
            )
            faults += [f"kill {number}: {process} outlived its service" for process in left]
            faults += [f"kill {number}: an answer is there twice"] if len(set(found)) < len(found) else []
            faults += [f"kill {number}: an answer is lost"] if not known <= set(found) else []
            known = set(found)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tiny_llama(root / "tiny.gguf")
        own = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml", "MODEL": "tiny.gguf"}
        settings = {f"LOCALLLM_{key}": str(root / place) for key, place in own.items()}
        environment = {**os.environ, **settings, "LOCALLLM_ENGINE": "fake", "LOCALLLM_PORT": "0"}
        faults = asyncio.run(kills(root, environment, options.kills, options.seed))
    for fault in faults:
        print(fault)
    finish(options.kills, len(faults), options.seed)


if __name__ == "__main__":
    main()
