"""Low-bit copies that draft: which file is whose, what is measured of them, and when a load uses or wants one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.fake import FakeBackend
from app.engine.load import auxiliary_models
from app.engine.load.auxiliary_models import LoadPlan, plan_load, with_found_draft
from app.engine.load.draft_copy import (
    CopyRecords,
    copy_metadata,
    copy_path,
    draft_copies_of,
    find_copy,
    is_copy,
    source_of,
)
from app.engine.messages import EngineConfig
from app.engine.tuning.speed_bench import measure_single_step
from app.engine.tuning.tune_results import RuntimeSettings
from offload.advice.drafts import COPY_ACCEPTANCES, DraftOffer
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.app.engine.load.test_auxiliary_models import CONFIG, GIB, MIB, SETTING, Devices, machine
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
COPYING = replace(CONFIG, uses_copy=True, finds_head=True)


def copied(model: Path, cache_dir: Path, file_type: str = "Q2_K", age_s: float = 0.0) -> Path:
    """Write the copy of `model` as `localllm quantize --as-draft` does."""
    path = copy_path(model, file_type, cache_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = PlanOptions(metadata=copy_metadata(model))
    execute(plan(model, file_type_named(file_type), path, options), 1, False, lambda _done: None)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - int(age_s * 1e9)))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "m.gguf")


def test_the_newest_copy_of_a_model_is_found_wherever_the_model_is(tmp_path: Path, model: Path) -> None:
    older, newer = copied(model, tmp_path, "Q3_K_M", age_s=10), copied(model, tmp_path)
    assert find_copy(model, tmp_path) == (newer, ())
    assert find_copy(model.rename(tmp_path / "moved.gguf"), tmp_path) == (newer, ())
    newer.unlink()
    assert find_copy(tmp_path / "moved.gguf", tmp_path) == (older, ())
    assert draft_copies_of(tmp_path / "gone.gguf", tmp_path) == []


def test_a_copy_says_whose_it_is(tmp_path: Path, model: Path) -> None:
    copy = copied(model, tmp_path)
    assert is_copy(read_header(copy))
    assert not is_copy(read_header(model))
    assert source_of(copy) == (copy.name.partition("-")[0], model)
    assert source_of(model) == ("", None)


def test_a_damaged_copy_and_one_of_another_model_are_passed_over_with_the_reason(tmp_path: Path, model: Path) -> None:
    copy = copied(model, tmp_path)
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-100])
    path, [reason] = find_copy(model, tmp_path)
    assert path is None
    assert reason.startswith("A low-bit copy does not draft:")

    other = tiny_llama(tmp_path / "other.gguf", lambda writer: writer.add_name("another"))
    copied(other, tmp_path).replace(copy)
    path, [reason] = find_copy(model, tmp_path)
    assert (path, "is no copy of m.gguf" in reason) == (None, True)


def test_a_model_that_changed_has_no_copy(tmp_path: Path, model: Path) -> None:
    copied(model, tmp_path)
    with model.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\1\2\3\4")
    assert find_copy(model, tmp_path) == (None, ())


def test_what_was_measured_counts_once_enough_tokens_were_verified(tmp_path: Path, model: Path) -> None:
    header, records = read_header(copied(model, tmp_path)), CopyRecords.of(tmp_path)
    usual = records.evidence(header)
    assert (usual.acceptance, usual.step_cost) == (COPY_ACCEPTANCES["Q2_K"], 0.0)
    assert records.has_paid(header.path)
    records.record_steps(header.path, 0.4, pays=False)
    assert not records.has_paid(header.path)
    records.record_use(header.path, 10, 5)
    assert records.evidence(header).acceptance == COPY_ACCEPTANCES["Q2_K"]
    records.record_use(header.path, 90, 55)
    assert (records.evidence(header).acceptance, records.evidence(header).step_cost) == (0.6, 0.4)
    records.forget(header.path)
    assert records.evidence(header) == usual
    assert records.has_paid(header.path)


@pytest.mark.parametrize("entry", [{"n_verified": 100, "n_accepted": 200}, {"n_verified": "x"}, {"step_cost": None}])
def test_a_damaged_record_counts_as_none(tmp_path: Path, model: Path, entry: dict[str, Any]) -> None:
    header, records = read_header(copied(model, tmp_path)), CopyRecords.of(tmp_path)
    records.file.update(header.path.name, entry)
    known = records.evidence(header)
    assert (known.acceptance, known.step_cost) == (COPY_ACCEPTANCES["Q2_K"], 0.0)


def test_a_head_beside_the_model_goes_before_its_copy_and_without_the_setting_none_is_used(tmp_path: Path) -> None:
    path = drafted_model(tmp_path / "m.gguf")
    copy, header = copied(path, tmp_path), validate_gguf(path)
    assert with_found_draft(EngineConfig(finds_head=True), header, tmp_path)[0].draft_path == ""
    assert with_found_draft(COPYING, header, tmp_path)[0].draft_path == str(copy)
    head = draft_head(tmp_path / "dflash-m.gguf", "dflash")
    assert with_found_draft(COPYING, header, tmp_path)[0].draft_path == str(head)


# Plans of loads


def planned(
    model: Path, cache_dir: Path, copy: Path | None, monkeypatch: pytest.MonkeyPatch, gain: float
) -> tuple[LoadPlan, list[str]]:
    """Return the plan of a load where a copy is expected to make answers `gain` times as fast, and its notices."""
    offer = DraftOffer(
        what="a copy",
        n_bytes=1,
        n_on_gpus=0,
        n_tokens=2,
        acceptance=0.8,
        decode_tps=1.0,
        gain=gain,
        least_acceptance=0.5,
    )
    monkeypatch.setattr(auxiliary_models, "draft_offer", lambda *_arguments: offer)
    monkeypatch.setattr(auxiliary_models, "planned_copy", lambda _model: object())
    config = replace(COPYING, draft_path=str(copy or ""))
    devices = Devices(machine(16 * GIB), MIB)
    notices: list[str] = []
    found = plan_load(
        devices, validate_gguf(model), "key", SETTING, config, notices.append, cache_dir, has_found_draft=bool(copy)
    )
    return found, notices


def test_a_copy_is_loaded_where_it_pays_and_left_out_with_figures_where_not(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(model, tmp_path)
    found, notices = planned(model, tmp_path, copy, monkeypatch, 1.3)
    assert (found.attempt.config.draft_path, notices) == (str(copy), [])
    assert found.auxiliary.draft is not None
    found, notices = planned(model, tmp_path, copy, monkeypatch, 0.7)
    assert (found.attempt.config.draft_path, found.auxiliary.draft) == ("", None)
    assert "0.70 times as fast where 80% of its tokens are accepted" in notices[0]
    assert str(copy) in notices[0]
    CopyRecords.of(tmp_path).record_steps(copy, 0.9, pays=False)
    found, notices = planned(model, tmp_path, copy, monkeypatch, 1.3)
    assert found.auxiliary.draft is None
    assert "no draft of it paid when its steps were measured" in notices[0]


def test_a_load_without_a_copy_says_what_one_would_do(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, notices = planned(model, tmp_path, None, monkeypatch, 1.3)
    [offer] = found.attempt.plan.drafts
    assert (offer.file_type, offer.pays) == ("Q2_K", True)
    assert notices[0].startswith("A low-bit copy of this model is made in the background")
    found, notices = planned(model, tmp_path, None, monkeypatch, 0.7)
    [offer] = found.attempt.plan.drafts
    assert not offer.pays
    assert notices[0].startswith("No low-bit copy of this model is made to draft: 0.70 times")


def test_a_single_step_is_measured_and_leaves_the_backend_empty() -> None:
    backend, ticks = FakeBackend(), iter(range(1000))
    assert measure_single_step(backend, RuntimeSettings(1, False, False), lambda: float(next(ticks))) == 1.0
    assert backend.n_cells_used == 0


# With llama.cpp


@pytest.mark.slow
def test_greedy_answers_with_a_copy_are_those_without_and_it_is_often_right(tmp_path: Path) -> None:
    script = Path(__file__).with_name("real_draft.py")
    copy = copied(GUIDE, tmp_path)
    run = subprocess.run(
        [sys.executable, str(script), str(GUIDE), str(copy)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)
    for temperature in ("0.0", "1.0"):
        assert answers[f"drafted at {temperature}"]["texts"] == answers[f"plain at {temperature}"]["texts"]
    tallies = [answers[f"drafted at {temperature}"]["drafts"]["draft model"] for temperature in ("0.0", "1.0")]
    n_verified, n_accepted = (sum(tally[name] for tally in tallies) for name in ("n_verified", "n_accepted"))
    assert n_verified > 10, "what is looked up takes the rest"
    assert 0.3 * n_verified < n_accepted <= n_verified
