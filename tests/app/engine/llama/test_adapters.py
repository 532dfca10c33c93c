from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.quantizer.gguf_adapters import control_vector, lora, lora_weights

REAL_STEERING = Path(__file__).with_name("real_adapters.py")
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
N_EMBD, N_LAYERS = 256, 4


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = [lora(folder / f"{seed}.gguf", lora_weights(N_EMBD, N_LAYERS, seed=seed, size=0.3)) for seed in (1, 2)]
    vector = control_vector(folder / "vector.gguf", N_EMBD, tuple(range(1, N_LAYERS)))
    run = subprocess.run(
        [sys.executable, str(REAL_STEERING), str(GUIDE), *map(str, adapters), str(vector)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.mark.parametrize("name", ["first", "half", "second", "control vector"])
def test_an_adapter_and_a_control_vector_change_the_guides_logits(steered: dict[str, Any], name: str) -> None:
    assert steered["shifts"][name] > 0.1


def test_without_adapters_the_logits_are_the_models_own_also_after_some(steered: dict[str, Any]) -> None:
    assert steered["shifts"]["none"] == steered["shifts"]["none again"] == 0.0


def test_adapter_sets_answer_differently_and_scale_0_answers_like_none(steered: dict[str, Any]) -> None:
    alone = steered["alone"]
    assert alone["zero"] == alone["none"]
    assert len(set(alone.values())) == 4


@pytest.mark.parametrize("name", ["none", "zero", "first", "half", "second"])
def test_answers_under_several_sets_at_once_are_those_of_each_set_alone(steered: dict[str, Any], name: str) -> None:
    for index in range(2):
        assert steered["answers"][f"{name} {index}"][0] == steered["alone"][name]


def test_a_prompt_is_cached_for_the_next_request_of_its_set_and_for_no_other(steered: dict[str, Any]) -> None:
    cached = {name: n_cached for name, (_, n_cached) in steered["answers"].items()}
    assert [cached[f"{name} 0"] for name in ("none", "first", "half", "second")] == [0, 0, 0, 0]
    assert all(cached[f"{name} 1"] > 0 for name in ("none", "zero", "first", "half", "second"))
