from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.quantizer.gguf_assistants import assistant, assisted_model

REAL_HEADS = "tests.app.engine.llama.real_heads"
SAME = 1e-3  # logits that differ by their last bits only
WAYS = [
    *("in_pieces", "beside_another", "with_drafts_in_between", "with_a_shared_begin", "saved_and_restored"),
    "with_a_begin_that_the_head_lost",  # it needs the last token alone
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("assistant")
    paths = [str(assisted_model(folder / "model.gguf")), str(assistant(folder / "assistant.gguf"))]
    run = subprocess.run(
        [sys.executable, "-m", REAL_HEADS, *paths], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_equal_those_without_an_assistant(results: dict[str, Any], temperature: float) -> None:
    answers = results["answers"]
    assert answers[f"drafted at {temperature}"]["texts"] == answers[f"plain at {temperature}"]["texts"]


def test_its_drafts_are_often_right_and_not_always(results: dict[str, Any]) -> None:
    tally = results["answers"]["drafted at 0.0"]["drafts"]["assistant head"]
    assert 0.3 * tally["n_drafted"] < tally["n_accepted"] < tally["n_drafted"]
    assert results["accepted"] > 1


@pytest.mark.parametrize("way", WAYS)
def test_its_logits_are_equal_however_the_text_was_computed(results: dict[str, Any], way: str) -> None:
    pairs = zip(results["logits"][way], results["logits"]["at_once"], strict=True)
    assert max(abs(one - other) for one, other in pairs) < SAME
