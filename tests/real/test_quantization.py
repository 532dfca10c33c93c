"""A real model in every type that needs no importance matrix: the size as planned, and what it lost."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from tests.real.quantizing import quantized_loss

pytestmark = pytest.mark.slow

# How far the predictions of a text may be from the original's, in nats a token. The original is Q4_1, its rows are no
# multiples of 256 (so K and IQ types fall back to others), and rounding of activations alone costs 0.003.
MOST_KLD = {
    "F32": 0.01,
    "F16": 0.01,
    "BF16": 0.01,
    "Q8_0": 0.015,
    "MXFP4_MOE": 0.015,  # a dense model has no experts: Q8_0
    "Q6_K": 0.03,
    "Q5_K_M": 0.25,
    "Q5_K_S": 0.25,
    "Q5_1": 0.25,
    "Q5_0": 0.25,
    "Q4_K_M": 0.1,
    "Q4_K_S": 0.1,
    "Q4_1": 1e-6,  # as it was
    "Q4_0": 0.5,
    "IQ4_NL": 0.4,
    "IQ4_XS": 0.4,
    "Q3_K_L": 0.25,
    "Q3_K_M": 0.25,
    "Q3_K_S": 0.8,
    "IQ3_M": 0.8,
    "IQ3_S": 0.8,
    "Q2_K": 0.8,
    "TQ2_0": inf,  # for models that were trained with such weights: this one says nothing any more
    "TQ1_0": inf,
}


@pytest.mark.parametrize("name", MOST_KLD)
def test_a_type_has_the_planned_size_and_loses_little(smollm_file: Path, tmp_path: Path, name: str) -> None:
    loss = quantized_loss(smollm_file, name, tmp_path / f"smollm-{name}.gguf")
    assert 0 <= loss.kld < MOST_KLD[name]
