"""A sample of `tests/battery/kills/kill_quantize.py`, which does the same a hundred times."""

from __future__ import annotations

import dataclasses
import os
import sys
import zlib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from quantizer.system.errors import StorageError
from quantizer.write.events import Event, JobResumed, TensorWritten
from quantizer.write.job import JobRequest, run_job
from quantizer.write.partial_output import Journal, journal_path, partial_path
from quantizer.write.quantize import fingerprint
from quantizer.write.quantize_plan import QuantizePlan
from tests.battery.kills.kill_quantize import Trial, cut_short, killed
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.seeing_checkpoints import write_seeing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module", params=[0, 300_000], ids=["one file", "shards"])
def trial(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, request: pytest.FixtureRequest) -> Trial:
    output = tmp_path_factory.mktemp("output") / "m.gguf"
    asked = JobRequest(str(checkpoint), "IQ4_XS", str(output), 1, is_overwriting=False, max_shard_bytes=request.param)
    return Trial.of(asked)


@pytest.mark.parametrize("n_events", [0, 2, 9, 20])
def test_a_killed_run_leaves_no_half_file_and_the_next_goes_on(trial: Trial, n_events: int) -> None:
    assert killed(trial, 0, n_events) == ""


@pytest.mark.parametrize("n_events", [0, 9, 30, 45])
def test_a_killed_run_of_a_model_that_sees_goes_on_in_either_file(tmp_path: Path, n_events: int) -> None:
    checkpoint = write_seeing(tmp_path / "seeing", "gemma3-seeing")
    (tmp_path / "output").mkdir()
    asked = JobRequest(str(checkpoint), "Q8_0", str(tmp_path / "output" / "m.gguf"), 1, is_overwriting=False)
    trial = Trial.of(asked)
    assert set(trial.expected) == {"m.gguf", "mmproj-m-F16.gguf"}
    assert killed(trial, 0, n_events) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_disk_that_ends_anywhere_leaves_nothing(trial: Trial, share: float) -> None:
    assert cut_short(trial, int(share * max(map(len, trial.expected.values())))) == ""


@pytest.fixture
def interrupted(tmp_path: Path, checkpoint: Path) -> JobRequest:
    """A request whose first run was cut off in the last tensor."""
    asked = JobRequest(str(checkpoint), "IQ4_XS", str(tmp_path / "m.gguf"), 1, is_overwriting=False)
    cut_off(asked)
    return asked


def cut_off(asked: JobRequest) -> None:
    """Run a request, then put in place of its output what a kill within the last tensor leaves."""
    list(run_job(asked))
    output = Path(asked.output)
    claim(asked, list(checksums(asked.plan()))[:-1])
    part = output.rename(partial_path(output, 0))
    os.truncate(part, part.stat().st_size - 100)


def checksums(plan: QuantizePlan) -> Iterator[int]:
    """Those of the blocks of a plan's files, which stand."""
    for shard in plan.shards:
        data = shard.path.read_bytes()
        ends = list(accumulate(shard.file.block_bytes))
        yield from (zlib.crc32(data[start:stop]) for start, stop in pairwise([0, *ends]))


def claim(asked: JobRequest, blocks: list[int]) -> None:
    """Write a journal of these blocks."""
    journal = Journal(Path(asked.output))
    journal.restart(fingerprint(asked.plan()), blocks)
    journal.close()


def n_resumed(events: list[Event]) -> int:
    return sum(event.n_tensors for event in events if isinstance(event, JobResumed))


def test_only_missing_tensors_are_written(interrupted: JobRequest) -> None:
    events = list(run_job(interrupted))
    assert sum(isinstance(event, TensorWritten) for event in events) == 1
    assert n_resumed(events) == len(interrupted.plan().tensors) - 1


def test_bytes_that_contradict_the_journal_are_written_again(interrupted: JobRequest) -> None:
    part = partial_path(Path(interrupted.output), 0)
    data = bytearray(part.read_bytes())
    data[-200_000] ^= 1
    part.write_bytes(data)
    assert 0 < n_resumed(list(run_job(interrupted))) < len(interrupted.plan().tensors) - 1
    assert Path(interrupted.output).read_bytes()[: len(data)] != data


@pytest.mark.parametrize(
    "change", [{"file_type": "Q4_0"}, {"tensor_types": ("attn_v=Q8_0",)}, {"is_overwriting": True}]
)
def test_another_request_begins_anew(interrupted: JobRequest, change: dict[str, object]) -> None:
    assert n_resumed(list(run_job(dataclasses.replace(interrupted, **change)))) == 0  # type: ignore[arg-type]


def test_a_source_that_changed_begins_anew(tmp_path: Path) -> None:
    source = TinyLlama().write(tmp_path / "model")
    folder = tmp_path / "out"
    folder.mkdir()
    asked = JobRequest(str(source), "Q8_0", str(folder / "m.gguf"), 1, is_overwriting=False)
    cut_off(asked)
    (source / "model.safetensors").touch()
    assert n_resumed(list(run_job(asked))) == 0


def test_a_run_that_was_killed_while_it_renamed_is_brought_to_its_end(tmp_path: Path, checkpoint: Path) -> None:
    output = tmp_path / "m.gguf"
    asked = JobRequest(str(checkpoint), "Q8_0", str(output), 1, is_overwriting=False, max_shard_bytes=600_000)
    list(run_job(asked))
    first, *others = (shard.path for shard in asked.plan().shards)
    claim(asked, list(checksums(asked.plan())))
    expected = first.rename(partial_path(output, 0)).read_bytes()
    events = list(run_job(asked))
    assert n_resumed(events) == len(asked.plan().tensors)
    assert first.read_bytes() == expected
    assert sorted(tmp_path.iterdir()) == [first, *others]


def test_a_journal_of_nonsense_is_no_journal(interrupted: JobRequest) -> None:
    journal_path(Path(interrupted.output)).write_bytes(b"\xff\n\x00zzz")
    assert n_resumed(list(run_job(interrupted))) == 0
    assert [path.name for path in Path(interrupted.output).parent.iterdir()] == ["m.gguf"]


def test_an_output_that_appeared_meanwhile_stays(interrupted: JobRequest) -> None:
    Path(interrupted.output).write_bytes(b"precious")
    with pytest.raises(StorageError, match="exists already"):
        list(run_job(interrupted))
    assert Path(interrupted.output).read_bytes() == b"precious"
