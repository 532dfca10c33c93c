from __future__ import annotations

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from tests.quantizer.packers import mxfp4, mxfp4_rows, read


def test_blocks_become_ggml_blocks_of_the_same_values() -> None:
    packed = mxfp4(np.random.default_rng(0), "experts.down_proj", (3, 8, 96))
    blocks = read(packed.config, packed.tensors)["experts.down_proj"]
    values = gguf.dequantize(blocks.reshape(3, 8, -1), gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(values, packed.weight)


def test_an_exponent_that_is_no_number_is_refused() -> None:
    packed = mxfp4(np.random.default_rng(0), "experts.down_proj", (3, 8, 96))
    packed.tensors["experts.down_proj_scales"][1][1, 2, 0] = 255
    with pytest.raises(CheckpointError, match=r"experts\.down_proj holds NaN"):
        read(packed.config, packed.tensors)


@pytest.mark.parametrize("method", ["compressed-tensors", "fp8"])
def test_experts_in_rows_of_bytes_become_the_same_blocks(method: str) -> None:
    packed = mxfp4_rows(np.random.default_rng(0), "mlp.experts.0.up_proj", (8, 96))
    codes, exponents = (tensor[1] for tensor in packed.tensors.values())
    name = "mlp.experts.0.up_proj.weight"
    if method == "fp8":  # as DeepSeek 4 stores them
        packed.tensors.clear()
        packed.tensors.update({name: ("I8", codes), f"{name}_scale_inv": ("F8_E8M0", exponents)})
        packed.config.update(quant_method="fp8", weight_block_size=[128, 128])
    blocks = read(packed.config, packed.tensors)[name]
    values = gguf.dequantize(blocks.reshape(8, -1), gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(values, packed.weight)
