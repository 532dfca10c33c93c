from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.run_history import RunHistory, RunRecord, measured_runs
from offload.speed.cost_model import Work
from quantizer.system.files import try_lock

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
    assert [child.wait(timeout=60) for child in children] == [0, 0]
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
