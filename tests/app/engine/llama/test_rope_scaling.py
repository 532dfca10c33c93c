from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import Edit, tiny_llama

CHILD = Path(__file__).with_name("real_rope_scaling.py")


def scaling(**values: str | float) -> Edit:
    """Metadata of a rope scaling, by the ends of their keys."""

    def edit(writer: Any) -> None:
        for name, value in values.items():
            key = f"{writer.arch}.rope.scaling.{name}"
            writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)

    return edit


MODELS: dict[str, Edit] = {
    "plain": scaling(),
    "linear": scaling(type="linear", factor=4.0),
    "yarn": scaling(type="yarn", factor=4.0),
    "yarn without a factor of attention": scaling(type="yarn", factor=4.0, attn_factor=1 / 1.1386294),
    "betas": scaling(type="yarn", factor=4.0, yarn_beta_fast=16.0, yarn_beta_slow=0.5),
    "nonsense": scaling(type="yarn", factor=4.0, yarn_beta_fast=-3.0, yarn_beta_slow=float("nan")),
    "longrope": scaling(attn_factor=1.2),
}


def answers(paths: list[Path]) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, CHILD, *paths], stdout=subprocess.PIPE, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ropes")
    paths = [tiny_llama(folder / f"{i}.gguf", edit) for i, edit in enumerate(MODELS.values())]
    return dict(zip(MODELS, answers(paths), strict=True))


@pytest.mark.parametrize(
    ("name", "betas"),
    [("plain", [-1.0, -1.0]), ("yarn", [-1.0, -1.0]), ("betas", [16.0, 0.5]), ("nonsense", [-1.0, -1.0])],
)
def test_a_context_gets_the_betas_of_the_file(found: dict[str, dict[str, Any]], name: str, betas: list[float]) -> None:
    assert found[name]["betas"] == betas


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("plain", False),
        ("linear", False),
        ("yarn", True),
        ("yarn without a factor of attention", False),
        ("longrope", True),
    ],
)
def test_rotations_that_are_scaled_are_known_so_that_no_key_is_scaled_twice(
    found: dict[str, dict[str, Any]], name: str, scales: bool
) -> None:
    assert found[name]["scales"] is scales


@pytest.mark.slow
def test_betas_and_divisors_of_the_same_yarn_compute_the_same(tmp_path: Path) -> None:
    """Divisors stand in the converted file; the other file has the betas, which llama.cpp alone would not read."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0}
    source = TinyLlama(n_layers=1, rope=yarn | {"beta_slow": 0.3}).write(tmp_path / "checkpoint")
    divided, ramped = tmp_path / "divided.gguf", tmp_path / "ramped.gguf"
    execute(plan(source, file_type_named("F32"), divided), 1, False, lambda _event: None)
    _with_ramp(divided, ramped)
    first, second = answers([divided, ramped])
    assert second["betas"] == [4.0, pytest.approx(0.3)]
    assert first["logits"] == pytest.approx(second["logits"], abs=2e-6 * np.ptp(first["logits"]))


def _with_ramp(divided: Path, ramped: Path) -> None:
    """Write the model again with the settings in the place of its divisors."""
    import gguf

    reader = gguf.GGUFReader(divided)
    writer = gguf.GGUFWriter(ramped, "llama")
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "llama.rope.scaling.attn_factor"):
            writer.add_key_value(
                key, entry.contents(), entry.types[0], entry.types[-1] if len(entry.types) > 1 else None
            )
    scaling(type="yarn", factor=4.0, yarn_beta_fast=4.0, yarn_beta_slow=0.3)(writer)
    for tensor in reader.tensors:
        if tensor.name != "rope_freqs.weight":
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
