from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.backend import Chunk, DecodeStatus
from app.engine.llama import HeadBackend
from app.engine.llama.head_contexts import HiddenRows
from app.engine.load import prediction_layers
from app.engine.load.loading import LoadListener, load_model
from app.engine.messages import EngineConfig
from tests.quantizer.gguf_heads import PREDICTING, predicting_model, split_model

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def stored() -> HiddenRows:
    rows = HiddenRows()
    rows.set(1, 10, ROWS)
    return rows


def test_the_state_before_a_token_is_that_of_the_token_before_it() -> None:
    known = [stored().before(1, position) for position in (10, 11, 12, 13, 14)]
    assert [None if row is None else list(row) for row in known] == [None, [0, 1], [2, 3], [4, 5], None]


def test_a_first_token_and_an_unknown_sequence_have_no_row() -> None:
    rows = HiddenRows()
    rows.set(1, 0, ROWS)
    assert rows.before(1, 0) is None
    assert rows.before(2, 1) is None


def test_rows_are_copied_and_replace_earlier_ones() -> None:
    rows, native = stored(), ROWS.copy()
    rows.set(1, 20, native)
    native[:] = 0
    assert rows.before(1, 13) is None
    row = rows.before(1, 23)
    assert row is not None
    assert list(row) == [4, 5]


def test_a_copy_of_a_sequence_has_its_rows_only() -> None:
    rows = stored()
    rows.set(2, 10, -ROWS)
    rows.share(1, 2)
    row = rows.before(2, 11)
    assert row is not None
    assert list(row) == [0, 1]
    rows.share(3, 2)
    assert rows.before(2, 11) is None


def test_removed_rows_are_not_returned() -> None:
    rows = stored()
    rows.remove(1)
    assert rows.before(1, 11) is None


REAL_HEAD = "tests.app.engine.llama.real_mtp"
SAME = 1e-3  # logits that differ by their last bits only
WAYS = ["in_pieces", "beside_another", "with_a_refused_draft", "with_a_shared_begin", "saved_and_restored"]


@pytest.fixture(scope="module")
def all_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By architecture. One process computes them all: to start it takes longer than to compute."""
    folder = tmp_path_factory.mktemp("head")
    paths = [str(predicting_model(folder / f"{name}.gguf", name)) for name in PREDICTING]
    command = [sys.executable, "-m", REAL_HEAD, *paths]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return dict(zip(PREDICTING, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module", params=PREDICTING)
def results(request: pytest.FixtureRequest, all_results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return all_results[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["glm4moe", "step35", "mimo2-chained"])
def test_answers_equal_those_without_layers_in_a_file_of_their_own(tmp_path: Path, architecture: str) -> None:
    model, head = split_model(tmp_path, architecture)
    command = [sys.executable, "-m", "tests.app.engine.llama.real_heads", str(model), str(head)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    answers = results["answers"]
    assert answers["drafted at 0.0"]["texts"] == answers["plain at 0.0"]["texts"]
    tally = answers["drafted at 0.0"]["drafts"]["mtp head"]
    assert 0.3 * tally["n_drafted"] < tally["n_accepted"] < tally["n_drafted"]
    ways = ("in_pieces", "beside_another", "with_drafts_in_between", "with_a_shared_begin", "saved_and_restored")
    assert all(difference(results, way) < SAME for way in ways)


def difference(results: dict[str, Any], way: str) -> float:
    pairs = zip(results["logits"][way], results["logits"]["at_once"], strict=True)
    return max(abs(one - other) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_equal_those_without_mtp(results: dict[str, Any], temperature: float) -> None:
    answers = results["answers"]
    assert answers[f"drafted at {temperature}"]["texts"] == answers[f"plain at {temperature}"]["texts"]


def test_mtp_drafts_spare_most_steps_although_some_are_rejected(results: dict[str, Any]) -> None:
    plain, drafted = results["answers"]["plain at 0.0"], results["answers"]["drafted at 0.0"]
    tally = drafted["drafts"]["mtp head"]
    assert 0.3 * tally["n_drafted"] < tally["n_accepted"] < tally["n_drafted"]
    assert 2 * drafted["n_steps"] < plain["n_steps"], "which looks up drafts too"


@pytest.mark.parametrize("way", WAYS)
def test_mtp_logits_are_equal_however_the_text_was_computed(results: dict[str, Any], way: str) -> None:
    assert difference(results, way) < SAME


def test_mtp_computes_nothing_until_it_drafts(results: dict[str, Any]) -> None:
    assert results["n_waiting"] == [1, 2, 3, 0]


def test_a_batch_of_a_prompt_is_computed_at_once_and_what_an_answer_leaves_waits_far_longer(
    results: dict[str, Any],
) -> None:
    assert results["n_waiting_in_an_answer"] == [0, 31, 0]


def test_mtp_layers_take_the_planned_memory_for_their_caches(results: dict[str, Any]) -> None:
    planned, allocated = results["cache_bytes"]
    assert abs(allocated - planned) < 0.01 * planned


def test_mtp_continues_without_the_beginning_of_a_text(results: dict[str, Any]) -> None:
    assert difference(results, "with_a_begin_that_the_head_lost") > SAME


@pytest.mark.slow
def test_answers_with_drafts_of_own_layers_equal_those_made_alone(tmp_path: Path) -> None:
    paths = [str(predicting_model(tmp_path / f"{name}.gguf", name)) for name in PREDICTING]
    command = [sys.executable, "tests/bench/engine/equal_workloads.py", *paths, "--first", "72", "--count", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    accepted = {row[0]: int(row[9]) for row in rows if row and row[0] in PREDICTING}
    assert accepted.keys() == set(PREDICTING)
    assert all(accepted.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "notice", "names"),
    [
        ("glm4moe", "m.gguf drafts with its own multi-token-prediction layer.", ["mtp head"]),
        ("qwen35", "m.gguf drafts with its own multi-token-prediction layer.", ["mtp head"]),
        ("mimo2-chained", "m.gguf drafts with its own 3 multi-token-prediction layers.", ["mtp head"]),
        ("cohere2moe", "m.gguf drafts with its own multi-token-prediction layer.", ["mtp head"]),
        ("qwen35", "m.gguf has multi-token-prediction layers that llama.cpp cannot run, and answers without them.", []),
    ],
)
def test_a_notice_reports_whether_an_mtp_layer_drafts(
    tmp_path: Path, architecture: str, notice: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not names:
        monkeypatch.delitem(prediction_layers._PREDICTIONS, architecture)
    notices: list[str] = []
    config = EngineConfig(n_ctx=64, n_threads=1, n_sequences=1)
    path = predicting_model(tmp_path / "m.gguf", architecture)
    loaded = load_model(
        path, config, tmp_path, LoadListener(lambda _fraction: True, notices.append, lambda _plan: None)
    )
    with loaded.owned:
        assert notice in notices
        assert [source.name for source in loaded.draft_sources] == names
        assert isinstance(loaded.backend, HeadBackend) == bool(names)
        assert loaded.backend.decode([Chunk(0, 0, [1, 2, 3], 1)]) is DecodeStatus.DONE
