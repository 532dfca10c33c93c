"""Weights in two ways: what is computed with which, to the bit, in a child for each model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.llama.step_weights import repacked_pattern
from app.engine.load.self_test import run_self_test
from offload.footprint.model import PlannedModel
from quantizer.gguf.tensor_types import FILE_TYPES, file_type_named
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.offload.model_outlines import header_of
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_adapters import lora, lora_weights

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
REAL = Path(__file__).with_name("real_weight_layouts.py")


def found(tmp_path: Path, kind: str) -> dict[str, Any]:
    model = tmp_path / f"tiny-{kind}.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", "tiny-llama", kind, model], check=True)
    done = subprocess.run(
        [sys.executable, str(REAL), model], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_small_steps_compute_with_repacked_weights_and_large_ones_as_the_file_has_them(tmp_path: Path) -> None:
    if not run_self_test(tmp_path).is_safe:
        pytest.skip("this build crashes on this processor when it repacks quantized weights, and the app does not")
    answer = found(tmp_path, "Q4_0")
    if not answer["n_bytes"]:
        pytest.skip("this processor repacks no weights of this type")
    assert answer["same"] == {"few": True, "many": True, "few again": True, "a context beside it": True}
    assert answer["differ"], "else nothing shows which weights were used"


@pytest.mark.slow
def test_a_model_without_repacked_weights_maps_none(tmp_path: Path) -> None:
    answer = found(tmp_path, "F16")
    assert answer["n_bytes"] == 0
    assert all(answer["same"].values())


def copied(model: Path, kind: str, *adapters: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("real_weight_copies.py")
    command = [sys.executable, str(script), str(model), kind, *map(str, adapters)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def made(folder: Path, shape: str, kind: str) -> Path:
    model = folder / f"{shape}-{kind}.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", shape, kind, model], check=True)
    return model


# Pure types and mixes; tied embeddings (Gemma 3); states (Mamba) and states beside attention; experts.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "file_type", "kind", "apart"),
    [
        ("tiny-llama", "Q4_1", "BF16", 0.2),
        ("tiny-llama", "Q5_1", "F16", 0.2),
        ("tiny-llama", "Q5_0", "F16", 0.2),
        ("tiny-llama", "IQ4_NL", "BF16", 0.2),
        ("tiny-gemma3", "Q4_K_M", "BF16", 0.5),
        ("tiny-mamba", "Q4_1", "BF16", 0.2),
        ("tiny-lfm2", "Q4_1", "BF16", 0.2),
        ("tiny-moe", "Q4_1", "BF16", 0.5),
    ],
)
def test_a_prompt_computes_with_copies_and_all_else_with_the_models_own(
    tmp_path: Path, shape: str, file_type: str, kind: str, apart: float
) -> None:
    answer = copied(made(tmp_path, shape, file_type), kind)
    assert answer["taken"] == answer["planned"] > 0
    assert all(answer["same"].values()), answer["same"]
    assert answer["differ"], "else nothing shows which weights were used"
    assert answer["apart"] < apart  # in these models any rounding moves the state by so much


@pytest.mark.slow
@pytest.mark.parametrize("file_type", ["Q4_1", "Q5_1", "Q5_0"])
def test_copies_in_bf16_compute_like_a_file_in_bf16(tmp_path: Path, file_type: str) -> None:
    assert copied(made(tmp_path, "tiny-llama", file_type), "BF16")["is_bf16"]


@pytest.mark.slow
def test_an_adapter_works_beside_copies(tmp_path: Path) -> None:
    adapter = lora(tmp_path / "lora.gguf", lora_weights(256, 4, seed=1, size=0.3))
    alone, adapted = copied(GUIDE, "BF16"), copied(GUIDE, "BF16", adapter)
    assert alone["taken"] == adapted["taken"] > 0
    assert all(adapted["same"].values()), adapted["same"]
    assert adapted["differ"]
    assert adapted["apart"] < 0.2


@pytest.mark.slow
def test_weights_that_are_not_quantized_have_no_copies(tmp_path: Path) -> None:
    answer = copied(made(tmp_path, "tiny-llama", "F16"), "BF16")
    assert answer["taken"] == answer["planned"] == 0
    assert not answer["differ"]
    assert all(answer["same"].values())


@pytest.mark.slow
def test_an_expert_has_no_copy(tmp_path: Path) -> None:
    dense = copied(made(tmp_path, "tiny-qwen3", "Q4_1"), "BF16")["taken"]
    experts = made(tmp_path, "tiny-moe", "Q4_1")
    assert 0 < copied(experts, "BF16")["taken"] < dense < 2 * experts.stat().st_size


REAL_TYPES = Path(__file__).with_name("real_repacked_types.py")


@pytest.mark.slow
def test_only_the_chosen_types_are_repacked(tmp_path: Path) -> None:
    if not run_self_test(tmp_path).is_safe:
        pytest.skip("this build crashes on this processor when it repacks quantized weights, and the app does not")
    model, mixed = tmp_path / "tiny.gguf", tmp_path / "mixed.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", "tiny-llama", "F16", model], check=True)
    options = PlanOptions(tensor_types=("ffn_down=Q4_0", "ffn_up=IQ4_NL"))
    execute(plan(model, file_type_named("Q8_0"), mixed, options), 1, is_overwriting=True, report=lambda _event: None)
    command = [sys.executable, str(REAL_TYPES), str(mixed), "Q4_0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if not {"Q4_0", "IQ4_NL"} <= set(answer["all"]):
        pytest.skip("this processor does not repack both types")
    assert answer["chosen"] == ["Q4_0"]
    assert all(answer["near"])


def test_a_pattern_names_what_can_be_repacked_of_the_types_and_nothing_else() -> None:
    header = header_of("qwen3-0.6b")
    assert repacked_pattern(header, ("Q4_0",)) == ""
    quantized = PlannedModel(header, header.tensors).quantized(FILE_TYPES["Q8_0"])
    named = re.compile(repacked_pattern(replace(header, tensors=quantized.tensors), ("Q8_0",)))
    matrices = [tensor.name for tensor in quantized.tensors if len(tensor.shape) > 1]
    assert [name for name in matrices if not named.search(name)] == ["token_embd.weight"]
    assert not any(named.search(tensor.name) for tensor in quantized.tensors if len(tensor.shape) == 1)


def computed(model: Path, *arguments: str, **environment: str) -> list[str]:
    script = Path(__file__).with_name("real_untiled_weights.py")
    command = [sys.executable, str(script), str(model), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    digests: list[str] = json.loads(done.stdout)
    return digests


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])  # an output matrix of its own, and the embedding's
def test_steps_below_so_many_rows_compute_without_tiled_kernels_and_no_others(tmp_path: Path, shape: str) -> None:
    model = made(tmp_path, shape, "Q6_K")
    tiled, without, chosen = computed(model), computed(model, GGML_CPU_TILED_MM="0"), computed(model, "12")
    if tiled == without:
        pytest.skip("ggml has no tiled kernels for this processor")
    assert chosen[:6] != tiled[:6]
    assert chosen[:5] == [tiled[0], without[1], without[2], tiled[3], tiled[4]]
    assert chosen[5] not in (tiled[5], without[5]), "of a prompt with few logits the output matrix alone"
    assert chosen[6] == tiled[6], "nothing is left from the steps before"
