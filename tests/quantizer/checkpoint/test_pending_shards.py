"""A checkpoint of which the shards come one after the other, while it is converted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.pending_shards import PendingShard, PendingShards
from quantizer.gguf.gguf_reader import open_local
from quantizer.write.events import Event, JobPlanned, JobResumed, OutputDone, ShardOrder, TensorWritten, WaitingForShard
from quantizer.write.job import JobRequest, open_job, run_job
from tests.quantizer.checkpoints import TinyLlama


class Coming:
    """A checkpoint whose shards lie elsewhere and are put in its folder one at a time."""

    def __init__(self, folder: Path, n_shards: int) -> None:
        self.folder = TinyLlama(n_layers=3, n_shards=n_shards).write(folder / "checkpoint")
        self.away = folder / "away"
        self.away.mkdir()
        self.shards = tuple(self._take_away(path) for path in sorted(self.folder.glob("*.safetensors")))

    def _take_away(self, path: Path) -> PendingShard:
        data = path.read_bytes()
        head = self.away / f"{path.name}.head"
        head.write_bytes(data[: 8 + int.from_bytes(data[:8], "little")])
        path.rename(self.away / path.name)
        return PendingShard(path.name, len(data), f"the hash of {path.name}", str(head))

    def put(self, name: str) -> None:
        (self.away / name).rename(self.folder / name)

    def request(self, output: Path) -> JobRequest:
        return JobRequest(str(self.folder), "Q8_0", str(output), 1, is_overwriting=False, shards=self.shards)


@pytest.fixture
def coming(tmp_path: Path) -> Coming:
    return Coming(tmp_path, 3)


def expected(tmp_path: Path) -> bytes:
    """What becomes of the checkpoint when it is there."""
    folder = TinyLlama(n_layers=3, n_shards=3).write(tmp_path / "all" / "checkpoint")
    list(run_job(JobRequest(str(folder), "Q8_0", str(tmp_path / "all" / "m.gguf"), 1, is_overwriting=False)))
    return (tmp_path / "all" / "m.gguf").read_bytes()


@pytest.mark.slow
async def test_a_job_asks_for_each_shard_when_it_needs_it_and_writes_the_same_bytes(
    coming: Coming, tmp_path: Path
) -> None:
    said: list[Event] = []
    async with open_job(coming.request(tmp_path / "m.gguf")) as job:
        async for event in job.events():
            said.append(event)
            if isinstance(event, WaitingForShard):
                coming.put(event.name)
                await job.mark_arrived(event.name)
    assert (tmp_path / "m.gguf").read_bytes() == expected(tmp_path)
    kinds = [event.kind for event in said if not isinstance(event, TensorWritten)]
    assert kinds == ["planned", "reads", "awaiting", "awaiting", "awaiting", "done"]
    [reads] = [event for event in said if isinstance(event, ShardOrder)]
    assert [name for name, _, _ in reads.files] == [event.name for event in said if isinstance(event, WaitingForShard)]
    n_tensors = next(event.n_tensors for event in said if isinstance(event, JobPlanned))
    assert max(last for _, _, last in reads.files) == n_tensors - 1


@pytest.mark.slow
async def test_a_job_that_was_left_resumes_where_it_stopped(coming: Coming, tmp_path: Path) -> None:
    request, received = coming.request(tmp_path / "m.gguf"), list[str]()
    async with open_job(request) as job:
        async for event in job.events():
            if isinstance(event, WaitingForShard) and not received:
                received.append(event.name)
                coming.put(event.name)
                await job.mark_arrived(event.name)
            if isinstance(event, TensorWritten):
                break  # with the second shard still missing
    assert not (tmp_path / "m.gguf").exists()
    events: list[Event] = []
    async with open_job(request) as job:
        async for event in job.events():
            events.append(event)
            if isinstance(event, WaitingForShard):
                if event.name not in received:  # reading is ahead of writing, so the first one may be read again
                    coming.put(event.name)
                await job.mark_arrived(event.name)
    [resumed] = [event for event in events if isinstance(event, JobResumed)]
    [order] = [event for event in events if isinstance(event, ShardOrder)]
    assert order.files[0][1] == resumed.n_tensors
    assert isinstance(events[-1], OutputDone)
    assert (tmp_path / "m.gguf").read_bytes() == expected(tmp_path)


async def test_a_shard_that_differs_from_its_header_is_refused(coming: Coming, tmp_path: Path) -> None:
    first = coming.shards[0].name
    data = bytearray((coming.away / first).read_bytes())
    data[20] ^= 1
    (coming.away / first).write_bytes(data)

    async def converse() -> None:
        async with open_job(coming.request(tmp_path / "m.gguf")) as job:
            async for event in job.events():
                if isinstance(event, WaitingForShard):
                    coming.put(event.name)
                    await job.mark_arrived(event.name)

    with pytest.raises(CheckpointError, match="differs from its announced header"):
        await converse()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "away"}  # noqa: ASYNC240


def test_what_lies_in_the_head_is_read_before_the_file_is_there(coming: Coming) -> None:
    arrivals, asked = PendingShards(), []
    shard = coming.shards[0]

    def ask(name: str) -> None:
        asked.append(name)
        coming.put(name)
        threading.Thread(target=arrivals.mark_arrived, args=[name]).start()

    arrivals.on_wait = ask
    file = arrivals.files(coming.folder, coming.shards)[shard.name]
    assert file.read(0, 8) == open_local(coming.away / shard.name).read(0, 8)
    assert asked == []
    tail = file.read(shard.n_bytes - 4, shard.n_bytes)
    assert tail == open_local(coming.folder / shard.name).read(shard.n_bytes - 4, shard.n_bytes)
    assert asked == [shard.name]
