from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.run_history import (
    RunHistory,
    RunRecord,
    RunRecorder,
    SpeedSample,
    SpeedSampler,
    fitted_rates,
    machine_key,
    measured_runs,
    runs_by_model,
)
from app.engine.messages import Finished
from app.engine.request import FinishReason, Request, SamplingParams, Timings, Usage
from offload.devices.host import CpuTimes
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.shares import ALL_ON_HOST
from offload.speed.cost_model import Work, decode_s, expected_rates, prefill_s
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import tensors_of
from quantizer.system.files import try_lock
from tests.patience import PATIENCE_S

WORK = Work(read_bytes={"CPU": 1e9}, operations={"CPU": 2e9}, attention_bytes=1e6, n_layers=16)
RECORD = RunRecord(
    machine="here", n_threads=2, model="a", kind="decode", depth=100, tokens_per_s=10.0, work=WORK, n_ubatch=0
)


@pytest.fixture
def history(tmp_path: Path) -> RunHistory:
    return RunHistory(tmp_path / "cache")


def test_added_records_are_read_by_machine(history: RunHistory) -> None:
    assert history.records("here") == []
    assert history.add([RECORD, replace(RECORD, machine="elsewhere")])
    assert history.records("here") == [RECORD]
    assert len(history.records()) == 2


def test_invalid_lines_are_ignored(history: RunHistory, tmp_path: Path) -> None:
    history.add([RECORD])
    path = tmp_path / "cache" / "runs.jsonl"
    whole = path.read_bytes()
    nonsense = (
        b'{}\n[]\nnull\n{"work": 3}\n\xff\n' + whole.replace(b"10.0", b"-1.0") + whole.replace(b'"depth"', b'"dep"')
    )
    path.write_bytes(nonsense + whole)
    assert history.records("here") == [RECORD]


def test_a_line_truncated_by_a_kill_loses_only_itself(history: RunHistory, tmp_path: Path) -> None:
    history.add([RECORD])
    path = tmp_path / "cache" / "runs.jsonl"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    history.add([replace(RECORD, model="b")])
    assert [record.model for record in history.records("here")] == ["a", "b"]


def test_the_oldest_records_are_dropped_when_the_file_is_large(history: RunHistory, tmp_path: Path) -> None:
    for start in range(0, 3000, 500):
        history.add(replace(RECORD, depth=start + index) for index in range(500))
    assert (tmp_path / "cache" / "runs.jsonl").stat().st_size <= 1 << 18
    depths = [record.depth for record in history.records("here")]
    assert depths == list(range(3000 - len(depths), 3000))
    assert len(depths) > 100


def test_a_file_locked_by_another_process_is_unchanged(history: RunHistory, tmp_path: Path) -> None:
    history.add([RECORD])
    lock = try_lock(tmp_path / "cache" / "runs.lock")
    assert lock is not None
    assert not history.add([RECORD])
    lock.release()
    assert history.records("here") == [RECORD]


def test_a_folder_that_cannot_be_created_loses_the_record_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = RunHistory(tmp_path / "file")
    assert not history.add([RECORD])
    assert history.records() == []


@pytest.mark.slow
def test_processes_that_add_records_at_once_lose_none(history: RunHistory, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "runs.jsonl"
    code = f"""
from pathlib import Path
from app.engine.load.run_history import RunHistory, RunRecord
from offload.speed.cost_model import Work
for depth in range(40):
    fields = dict(machine="m", n_threads=1, model="x", kind="decode")
    record = RunRecord(**fields, depth=depth, tokens_per_s=1.0, work=Work(read_bytes={{}}))
    while not RunHistory(Path({str(path.parent)!r})).add([record]):
        pass
"""
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [child.wait(timeout=PATIENCE_S) for child in children] == [0, 0]
    assert sorted(record.depth for record in history.records("m")) == sorted([*range(40), *range(40)])


def test_the_median_of_the_newest_runs_of_a_model_at_a_depth_counts() -> None:
    speeds = [1.0, 2.0, 10.0, 11.0, 500.0, 12.0, 13.0]
    quiet = [replace(RECORD, tokens_per_s=speed, others_share=0.1) for speed in speeds]
    runs, prompts = measured_runs([*quiet, replace(RECORD, tokens_per_s=0.5, others_share=0.8)], n_threads=2)
    assert [run.tokens_per_s for run in runs] == [12.0]
    assert prompts == []


def test_the_load_of_the_processors_does_not_count_where_a_gpu_does_the_work() -> None:
    on_gpu = replace(RECORD, work=Work(read_bytes={"GPU0": 1e9, "CPU": 1e6}), others_share=0.8)
    weights = [
        measured_runs([record], n_threads=2)[0][0].weight for record in (on_gpu, replace(RECORD, others_share=0.8))
    ]
    assert weights[0] == 1.0 > weights[1]


def test_runs_at_other_depths_or_of_other_models_are_separate() -> None:
    others = [
        RECORD,
        replace(RECORD, depth=600),
        replace(RECORD, model="b"),
        replace(RECORD, kind="prefill", n_ubatch=512),
    ]
    runs, prompts = measured_runs(others, n_threads=2)
    assert (len(runs), len(prompts)) == (3, 1)
    assert prompts[0].n_ubatch == 512


def test_runs_with_another_number_of_threads_are_ignored() -> None:
    assert measured_runs([RECORD], n_threads=4) == ([], [])


REQUEST = Request(request_id="a", prompt="hello")
USAGE = Usage(n_prompt_tokens=200, n_output_tokens=41, n_passes=41)
TIMINGS = Timings(prefill_s=2.0, decode_s=4.0)
END = Finished("a", FinishReason.LENGTH, USAGE, TIMINGS)


def samples_of(
    request: Request = REQUEST, end: Finished = END, *, is_alone: bool = True, n_cells: int = 0
) -> list[SpeedSample]:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(request, is_alone=is_alone)
    sampler.end(end, n_cells)
    sampler.flush()
    return samples


def test_an_answer_alone_is_a_sample_of_prefill_and_decode() -> None:
    (answer,) = samples_of(n_cells=1000)
    assert replace(answer, others_share=None) == SpeedSample(
        decode_tps=10.0, depth=220, n_cells=980, prefill_tps=100.0, prefill_depth=200
    )


def test_samples_are_recorded_at_a_flush_once() -> None:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.end(END, 0)
    assert samples == []
    sampler.flush()
    sampler.flush()
    assert len(samples) == 1


def test_a_prompt_that_was_computed_in_part_is_no_sample_of_prefill() -> None:
    (answer,) = samples_of(end=replace(END, usage=replace(USAGE, n_cached_tokens=10)))
    assert answer.prefill_tps is None


@pytest.mark.parametrize(
    "usage",
    [replace(USAGE, n_output_tokens=5), replace(USAGE, n_drafted_tokens=3), replace(USAGE, n_dropped_tokens=64)],
)
def test_short_drafted_and_shifted_answers_are_no_samples(usage: Usage) -> None:
    assert samples_of(end=replace(END, usage=usage)) == []


def test_aborted_answers_and_those_without_times_are_no_samples() -> None:
    assert samples_of(end=replace(END, reason=FinishReason.ABORTED)) == []
    assert samples_of(end=replace(END, timings=Timings())) == []


def test_answers_with_a_grammar_or_probabilities_are_no_samples() -> None:
    assert samples_of(replace(REQUEST, sampling=SamplingParams(grammar='root ::= "a"'))) == []
    assert samples_of(replace(REQUEST, n_logprobs=3)) == []


def test_answers_that_run_together_are_no_samples() -> None:
    assert samples_of(is_alone=False) == []
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.begin(replace(REQUEST, request_id="b"), is_alone=False)
    sampler.end(END, 0)
    sampler.end(replace(END, request_id="b"), 0)
    sampler.flush()
    assert samples == []


def test_an_answer_beside_an_embedding_is_no_sample() -> None:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.disturb()
    sampler.end(END, 0)
    sampler.flush()
    assert samples == []


@pytest.mark.parametrize(
    ("n_threads", "changes", "known"), [(None, False, None), (2, False, 2), (1, False, 1), (2, True, 0)]
)
def test_an_answer_on_a_busy_machine_is_a_sample_that_knows_its_threads(
    n_threads: int | None, changes: bool, known: int | None, tmp_path: Path, tiny_model: Path
) -> None:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True, n_threads=n_threads)
    if changes:
        sampler.change_threads()
    sampler.end(END, 0)
    sampler.flush()
    assert [sample.n_threads for sample in samples] == [known]
    recorder(tmp_path, tiny_model).record(replace(samples[0], others_share=0.1))
    records = RunHistory(tmp_path).records()
    # with fewer threads it says nothing about all of them, but was measured here
    assert {record.n_threads for record in records} == {2 if known is None else known}
    assert bool(measured_runs(records, n_threads=2)[0]) == (known in (None, 2))
    (runs,) = runs_by_model(MACHINE, tmp_path).values()
    assert {run.is_quiet for run in runs} == {known != 0}


def test_a_sample_knows_how_much_others_took_of_the_processors_meanwhile() -> None:
    samples: list[SpeedSample] = []
    readings = iter([CpuTimes(10.0, 1.0, 2.0), CpuTimes(20.0, 2.0, 6.0)])
    sampler = SpeedSampler(samples.append, lambda: next(readings))
    sampler.begin(REQUEST, is_alone=True)
    sampler.end(END, 0)
    sampler.flush()
    assert [sample.others_share for sample in samples] == [0.5]


MACHINE = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=1e9))
ANSWER = SpeedSample(decode_tps=5.0, depth=100, n_cells=600, prefill_tps=50.0, prefill_depth=90, others_share=0.0)


def recorder(cache_dir: Path, model: Path, *, is_fused: bool = False) -> RunRecorder:
    header = read_header(model)
    return RunRecorder(
        history=RunHistory(cache_dir),
        n_threads=2,
        fingerprint="a",
        model=PlannedModel(header, tensors_of(header)),
        setting=RunConfig(n_ctx=128, n_cells=128, kv_types=KvTypes(), is_fused=is_fused),
        devices=MACHINE,
        placement=ALL_ON_HOST,
    )


def test_recorded_speeds_are_predicted_afterwards(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path / "first", tiny_model).record(ANSWER)
    decode, prefill = RunHistory(tmp_path / "first").records()
    expected = 1 / decode_s(decode.work, expected_rates(MACHINE))
    recorder(tmp_path, tiny_model).record(replace(ANSWER, decode_tps=expected / 2))
    rates = fitted_rates(MACHINE, tmp_path, n_threads=2)
    assert 1 / decode_s(decode.work, rates) == pytest.approx(expected / 2, rel=0.02)
    assert 1 / prefill_s(prefill.work, rates, "CPU", prefill.n_ubatch) == pytest.approx(50.0, rel=0.02)


def test_a_single_slow_run_changes_little(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(replace(ANSWER, decode_tps=0.01))
    rates = fitted_rates(MACHINE, tmp_path, n_threads=2)
    (decode, _) = RunHistory(tmp_path).records()
    assert 1 / decode_s(decode.work, rates) > 0.1
    assert rates.uncertainty > 0.9


def test_runs_with_other_threads_or_on_another_machine_change_nothing(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(ANSWER)
    card = Device(name="GPU0", kind=DeviceKind.GPU, total_bytes=1, free_bytes=1, description="another")
    other = Machine(MACHINE.host, (card,))
    assert fitted_rates(MACHINE, tmp_path, n_threads=3) == expected_rates(MACHINE)
    assert fitted_rates(other, tmp_path, n_threads=2) == expected_rates(other)
    assert machine_key(other) != machine_key(MACHINE)


def test_unfused_attention_is_as_deep_as_all_cells_in_use(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(ANSWER)
    recorder(tmp_path, tiny_model, is_fused=True).record(ANSWER)
    plain, fused = (record.depth for record in RunHistory(tmp_path).records() if record.kind == "decode")
    assert (plain, fused) == (600, 100)
