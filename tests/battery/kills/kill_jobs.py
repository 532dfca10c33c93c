"""Kills a service at random moments while it downloads and quantizes for others, and has the next one go on.

    uv run python tests/battery/kills/kill_jobs.py [--kills 20] [--queued 50] [--seed 1]

Each round starts a service over one data folder, retries or starts a download of 64 MiB from a hub of ours and a
conversion of a checkpoint of a few hundred MB, and kills the service with SIGKILL. Then the last service ends both.
Told: bytes fetched again for each kill, tensors that were not converted again, processes that outlived their service,
and what a queue of many real downloads leaves of descriptors. Fails where a job is lost, more than 1 MiB is fetched
again for a kill, or anything is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.client.service_client import ServiceClient
from app.protocol.job import Job
from quantizer.system.process import python_command
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.battery.tally import finish
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import tiny_llama

MIB = 1 << 20
N_BYTES = 64 * MIB
BYTES_PER_S = 1 * MIB  # of each connection


@dataclass
class Service:
    """A service in a process of its own, with a client."""

    process: subprocess.Popen[bytes]
    client: ServiceClient

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@asynccontextmanager
async def service(environment: dict[str, str]) -> AsyncIterator[Service]:
    """Start one, and end it if nobody has killed it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = python_command("app.cli.main", "serve", "--owned")
    with subprocess.Popen(command, env=environment, **pipes) as process:  # noqa: ASYNC220 - nothing else goes on
        url = json.loads(process.stdout.readline())["url"]
        async with ServiceClient(url) as client:
            yield Service(process, client)
        process.stdin.close()
        await asyncio.to_thread(process.wait)


async def again(client: ServiceClient, known: Job | None, kind: str, arguments: dict[str, object]) -> Job:
    """Start a job, or go on with it."""
    if known is None:
        return await client.start_job(kind, arguments)
    job = await client.job(known.id)
    return await client.retry_job(job.id) if job.state != "done" else job


async def end_of(client: ServiceClient, job: Job) -> Job:
    return [seen async for seen in client.watch_job(job.id)][-1]


async def begun(client: ServiceClient, job: Job) -> None:
    """Wait until something of the job is done in this run."""
    async for seen in client.watch_job(job.id):
        if seen.fraction:
            return


async def kills(environment: dict[str, str], hub: HubServer, checkpoint: Path, n_kills: int, seed: int) -> list[str]:
    faults, chance = [], random.Random(seed)
    pull = {"reference": "org/large"}
    conversion = {"source": str(checkpoint), "file_type": "Q4_K_M", "threads": 1}
    jobs: list[Job | None] = [None, None]
    for number in range(n_kills):
        async with service(environment) as running:
            jobs = [
                await again(running.client, jobs[0], "pull", pull),
                await again(running.client, jobs[1], "quantize", conversion),
            ]
            await begun(running.client, jobs[1])
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            family = running.family()
            running.process.kill()
            left = psutil.wait_procs(family, timeout=5)[1]
            faults += [f"kill {number}: {process} outlived its service" for process in left]
    hub.bytes_per_s = 0
    async with service(environment) as running:
        states = [(await running.client.job(job.id)).state for job in jobs]
        print(f"after {n_kills} kills the jobs are {' and '.join(states)}")
        ended = [await end_of(running.client, await again(running.client, job, "", {})) for job in jobs]
        log = await running.client.job_log(ended[1].id)
    resumed = [int(line.split()[2]) for line in log.splitlines() if line.startswith("Resumes after")]
    print(f"the conversion went on {len(resumed)} times, after these numbers of tensors: {resumed}")
    again_bytes = hub.n_sent() - N_BYTES
    print(
        f"fetched again: {again_bytes / MIB:.2f} MiB in {n_kills} kills, {again_bytes / MIB / n_kills:.3f} MiB a kill"
    )
    faults += [f"the job ended as {job}" for job in ended if job.state != "done"]
    faults += ["more than 1 MiB a kill was fetched again"] if again_bytes > n_kills * MIB else []
    faults += [f"the first of {resumed} is less than a later one"] if resumed != sorted(resumed) else []
    return faults


async def queue(environment: dict[str, str], n_queued: int) -> list[str]:
    """Have many small models fetched one after the other, and look for what is left of it."""
    async with service(environment) as running:
        watched = psutil.Process(running.process.pid)
        await end_of(running.client, await running.client.start_job("pull", {"reference": "org/small-0"}))
        before = watched.num_fds()
        jobs = [
            await running.client.start_job("pull", {"reference": f"org/small-{number + 1}"})
            for number in range(n_queued)
        ]
        ended = [await end_of(running.client, job) for job in jobs]
        begun_s = [job.started_s for job in ended]
        n_more = watched.num_fds() - before
        n_children = len([child for child in running.family() if "app.cli.job_process" in child.cmdline()])
    print(f"{n_queued} downloads in the queue: {sum(job.state == 'done' for job in ended)} done, ", end="")
    print(f"begun in order: {begun_s == sorted(begun_s)}, descriptors more: {n_more}, processes left: {n_children}")
    return [] if begun_s == sorted(begun_s) and n_more <= 0 and not n_children else ["the queue left something"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--queued", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        model = tiny_llama(root / "tiny.gguf").read_bytes()
        checkpoint = TinyLlama(n_layers=12, n_embd=1024, n_ff=4096, n_heads=8, n_kv_heads=8).write(root / "checkpoint")
        repos = [HubRepo.of(f"org/small-{number}", {"m.gguf": model}) for number in range(options.queued + 1)]
        large = HubRepo.of("org/large", {"large.gguf": model + bytes(N_BYTES - len(model))})
        with HubServer(large, *repos) as hub:
            own = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml", "MODEL": "tiny.gguf"}
            settings = {f"LOCALLLM_{key}": str(root / place) for key, place in own.items()}
            fake = {
                "LOCALLLM_ENGINE": "fake",
                "LOCALLLM_PORT": "0",
                "HF_ENDPOINT": hub.url,
                "HF_HOME": str(root / "hf"),
            }
            environment = {**os.environ, **settings, **fake}
            hub.bytes_per_s = BYTES_PER_S
            faults = asyncio.run(kills(environment, hub, checkpoint, options.kills, options.seed))
            faults += asyncio.run(queue(environment, options.queued))
    for fault in faults:
        print(fault)
    finish(options.kills + options.queued, len(faults), options.seed)


if __name__ == "__main__":
    main()
