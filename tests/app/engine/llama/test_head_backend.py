from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.engine.llama import HeadBackend
from app.engine.load import planner
from app.engine.load.loading import LoadListener, load_model
from app.engine.messages import EngineConfig
from app.protocol.plan import Plan
from offload.devices.machine import Machine
from quantizer.gguf.gguf_reader import ModelFileError
from tests.quantizer.gguf_draft_heads import HEADS, deep_head, draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama

REAL_HEADS = "tests.app.engine.llama.real_heads"
SAME = 1e-3  # logits that differ by their last bits only
# Of 4 drafted tokens; llama.cpp alone, with the pairing of its own server: 3.4, 2.1, 2.9, 2.9, 3.0 and 2.0.
ACCEPTED = {
    "eagle3": 3.0,
    "eagle3-small-vocabulary": 1.8,
    "dflash": 2.6,
    "dflash2": 2.6,
    "dspark": 2.7,
    "dspark-small-vocabulary": 1.8,
}


@pytest.fixture(scope="module")
def all_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By kind of head. One process computes them all: to start it takes longer than to compute."""
    folder = tmp_path_factory.mktemp("head")
    model = drafted_model(folder / "m.gguf")
    heads = [str(draft_head(folder / f"{kind}.gguf", kind)) for kind in HEADS]
    command = [sys.executable, "-m", REAL_HEADS, str(model), *heads]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return dict(zip(HEADS, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module", params=HEADS)
def results(request: pytest.FixtureRequest, all_results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return all_results[request.param] | {"kind": request.param}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_equal_those_without_a_head(results: dict[str, Any], temperature: float) -> None:
    answers = results["answers"]
    assert answers[f"drafted at {temperature}"]["texts"] == answers[f"plain at {temperature}"]["texts"]


def test_head_drafts_spare_most_steps_beside_drafts_that_are_looked_up(results: dict[str, Any]) -> None:
    plain, drafted = results["answers"]["plain at 0.0"], results["answers"]["drafted at 0.0"]
    tally = drafted["drafts"][results["name"]]
    assert 0.3 * tally["n_drafted"] < tally["n_accepted"] < tally["n_drafted"]
    assert drafted["drafts"]["prompt lookup"]["n_accepted"] > 0, "both draft in the same answers"
    assert 2 * drafted["n_steps"] < plain["n_steps"]


def test_a_head_drafts_what_the_model_says_as_often_as_in_the_peer(results: dict[str, Any]) -> None:
    assert results["accepted"] > ACCEPTED[results["kind"]]


@pytest.mark.parametrize(
    "way", ["in_pieces", "beside_another", "with_drafts_in_between", "with_a_shared_begin", "saved_and_restored"]
)
def test_a_head_predicts_the_same_however_the_text_was_computed(results: dict[str, Any], way: str) -> None:
    pairs = zip(results["logits"][way], results["logits"]["at_once"], strict=True)
    assert max(abs(one - other) for one, other in pairs) < SAME


@pytest.mark.slow
@pytest.mark.parametrize(("n_layers", "n_taps", "block_size"), [(1, 26, 32), (4, 4, 8), (5, 3, 8), (12, 3, 8)])
def test_the_largest_dflash_2_heads_that_are_taken_run(
    tmp_path: Path, n_layers: int, n_taps: int, block_size: int
) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("dflash.attention.sliding_window", 16)
        writer.add_array("dflash.attention.sliding_window_pattern", [index % 2 == 0 for index in range(n_layers)])

    model = drafted_model(tmp_path / "m.gguf")
    head = deep_head(tmp_path / "h.gguf", n_layers, n_taps, block_size, describe)
    command = [sys.executable, "-m", REAL_HEADS, str(model), str(head)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["answers"]["drafted at 0.0"]["texts"] == found["answers"]["plain at 0.0"]["texts"]
    assert found["accepted"] > 1.0


def load(folder: Path, model: Path, head: Path, notices: list[str] | None = None) -> list[str]:
    """Load a model with a head, and return the names of its draft sources."""
    config = EngineConfig(n_ctx=64, n_threads=1, n_sequences=1, draft_path=str(head))
    on_notice = ([] if notices is None else notices).append
    loaded = load_model(model, config, folder, LoadListener(lambda _fraction: True, on_notice, lambda _plan: None))
    with loaded.owned:
        assert isinstance(loaded.backend, HeadBackend)
        return [source.name for source in loaded.draft_sources]


@pytest.mark.slow
def test_a_head_is_recognised_by_its_file_and_announced(tmp_path: Path) -> None:
    notices: list[str] = []
    model, head = drafted_model(tmp_path / "m.gguf"), draft_head(tmp_path / "h.gguf", "dflash")
    assert load(tmp_path, model, head, notices) == ["dflash head"]
    assert "h.gguf drafts for m.gguf: dflash head." in notices


@pytest.mark.slow
def test_a_head_of_another_model_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    model, head = tiny_llama(tmp_path / "m.gguf"), draft_head(tmp_path / "h.gguf", "eagle3")
    with pytest.raises(ModelFileError, match=r"h\.gguf cannot draft for m\.gguf: its target layer 3"):
        load(tmp_path, model, head)


def load_alone(
    model: Path, *, finds_head: bool = True, on_plan: Callable[[Plan], object] = lambda _plan: None
) -> tuple[list[str], list[str]]:
    """Load a model that is told no head, and return the names of its draft sources and the notices."""
    notices: list[str] = []
    config = EngineConfig(n_ctx=64, n_threads=1, n_sequences=1, finds_head=finds_head)
    loaded = load_model(model, config, model.parent, LoadListener(lambda _fraction: True, notices.append, on_plan))
    with loaded.owned:
        return [source.name for source in loaded.draft_sources], notices


@pytest.mark.slow
def test_the_head_beside_a_model_drafts_without_being_named(tmp_path: Path) -> None:
    model, _ = drafted_model(tmp_path / "m.gguf"), draft_head(tmp_path / "dflash-m.gguf", "dflash")
    names, notices = load_alone(model)
    assert names == ["dflash head"]
    assert "dflash-m.gguf drafts for m.gguf: dflash head." in notices
    assert load_alone(model, finds_head=False)[0] == []


@pytest.mark.slow
def test_a_head_of_another_model_beside_it_is_passed_over_with_a_notice(tmp_path: Path) -> None:
    model, _ = tiny_llama(tmp_path / "m.gguf"), draft_head(tmp_path / "dflash-m.gguf", "dflash")
    names, notices = load_alone(model)
    assert names == []
    assert any(notice.startswith("dflash-m.gguf cannot draft for m.gguf: ") for notice in notices)


@pytest.mark.slow
def test_a_head_that_was_found_gives_way_where_only_the_model_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = drafted_model(tmp_path / "m.gguf"), draft_head(tmp_path / "dflash-m.gguf", "dflash")
    detect, verdicts, n_free = planner.detect_machine, list[str](), [0]

    def with_free(*given: Any) -> Machine:
        machine = detect(*given)
        return replace(machine, host=replace(machine.host, free_bytes=n_free[0]))

    def fits(n_mib: int) -> bool:
        n_free[0] = n_mib << 20
        load_alone(model, finds_head=False, on_plan=lambda plan: verdicts.append(plan.verdict))
        return verdicts[-1] == "fits"

    monkeypatch.setattr(planner, "detect_machine", with_free)
    n_free[0] = bisect_left(range(1 << 13), True, key=fits) << 20
    names, notices = load_alone(model)
    assert names == []
    assert any(notice.startswith("dflash-m.gguf is not used for drafts: ") for notice in notices)
    n_free[0] += 1 << 30
    assert load_alone(model)[0] == ["dflash head"]
